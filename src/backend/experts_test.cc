// Mixtures of experts against the scalar reference, on every backend.
#include <algorithm>

#include "backend/ops_test_support.h"

namespace nanovllm::test {
namespace {

constexpr int kRowWidth = 96, kWidthOfExperts = 72, kSharedWidth = 40, kNumExperts = 12;

// A mixture in the dtype that the backend multiplies.
class Mixture {
 public:
  Mixture(uint32_t seed, DType dtype) : random_(seed), dtype_(dtype) {
    spec.router = matrix({kNumExperts}, kRowWidth);
    spec.routing.num_active = 3;
    spec.routing.renormalise = true;
    for (int i = 0; i < kNumExperts; ++i) spec.experts.push_back(dense(kWidthOfExperts));
    spec.shared = dense(kSharedWidth);
    spec.shared_gate = matrix({1}, kRowWidth);
  }
  Matrix matrix(std::initializer_list<int64_t> rows, int64_t cols) {
    Matrix matrix;
    for (const int64_t n : rows) {
      const float range = 1.7f / std::sqrt(static_cast<float>(cols));
      const HostTensor& m = kept_.emplace_back(
          HostTensor(random_.floats(n * cols, -range, range), dtype_, {n, cols}));
      matrix.pieces.push_back(
          {.data = m.bytes.data(), .dtype = dtype_, .rows = n, .cols = cols, .row_stride = cols});
    }
    return matrix;
  }
  HostTensor rows(int64_t n) {
    return {random_.floats(n * kRowWidth, -2, 2), dtype_, {n, kRowWidth}};
  }

  Experts spec;

 private:
  Dense dense(int64_t width) {
    return {matrix({width, width}, kRowWidth), Activation::kSilu, matrix({kRowWidth}, width)};
  }
  Random random_;
  const DType dtype_;
  std::vector<HostTensor> kept_;
};

HostTensor run(Backend& backend, const Experts& spec, const Tensor& x) {
  const auto weights = backend.make_experts(spec, x.dtype, static_cast<int>(x.rows()));
  const DeviceTensor in = upload(backend, x);
  const DeviceTensor out = device_tensor(backend, x.dtype, {x.rows(), kRowWidth});
  backend.experts(out.view, in.view, *weights);
  return download(backend, out.view);
}

using Mixtures = OpsTest;
INSTANTIATE_TEST_SUITE_P(Backends, Mixtures, every_backend_and_dtype(), name_of);

TEST_P(Mixtures, AnyNumberOfRowsMatchesReference) {
  const auto backend = make();
  Mixture mixture(1, act());
  for (const int rows : {1, 2, 7, 33, 150, 1100}) {
    const HostTensor x = mixture.rows(rows);
    // gate, up and their product are rounded to the act dtype.
    const double error = act() == DType::kBFloat16 ? 0.03 : 2e-5;
    expect_close(run(*backend, mixture.spec, x.view), reference::experts(x.view, mixture.spec),
                 error, error);
  }
}

TEST_P(Mixtures, ARowIsTheSameInAnyCompanyAndWithAnyNumberOfThreads) {
  if (!backend_case().is_deterministic) GTEST_SKIP() << "promised with `deterministic` only";
  Mixture mixture(2, act());
  const HostTensor x = mixture.rows(90);
  const HostTensor all = run(*make(1), mixture.spec, x.view);
  for (const int threads : {1, 2, 3}) {
    const auto backend = make(threads);
    for (int begin = 0, n = 1; begin + n <= 90; begin += n, n = n * 2 + 1) {
      const HostTensor some = run(*backend, mixture.spec, x.view.slice_rows(begin, begin + n));
      for (int r = 0; r < n; ++r) expect_same_bits(some.row(r), all.row(begin + r));
    }
  }
}

TEST_P(Mixtures, OfEqualExpertsTheFirstAreChosen) {
  const auto backend = make();
  Mixture mixture(3, act());
  const HostTensor zeros(std::vector<float>(kNumExperts * kRowWidth), act(),
                         {kNumExperts, kRowWidth});
  mixture.spec.router.pieces[0].data = zeros.bytes.data();
  const HostTensor x = mixture.rows(5);
  const HostTensor chosen = run(*backend, mixture.spec, x.view);
  std::swap(mixture.spec.experts[3], mixture.spec.experts[7]);  // not among them
  expect_same_bits(run(*backend, mixture.spec, x.view).bytes, chosen.bytes);
  std::swap(mixture.spec.experts[2], mixture.spec.experts[7]);
  const HostTensor others = run(*backend, mixture.spec, x.view);
  EXPECT_NE(others.bytes, chosen.bytes);
}

// Ranks that share the experts out, or slices of them, give summands of the whole.
TEST_P(Mixtures, TheRanksSummandsAddUp) {
  const auto backend = make();
  Mixture mixture(4, act());
  mixture.spec.shared.reset();
  mixture.spec.shared_gate = {};
  const HostTensor x = mixture.rows(20);
  std::vector<float> sum(20 * kRowWidth);
  for (const int first : {0, 5}) {
    Experts part = mixture.spec;
    part.first = first;
    const auto begin = mixture.spec.experts.begin() + first;
    part.experts.assign(begin, first == 0 ? begin + 5 : mixture.spec.experts.end());
    const HostTensor summand = run(*backend, part, x.view);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += summand.at(static_cast<int64_t>(i));
  }
  const double error = act() == DType::kBFloat16 ? 0.03 : 1e-5;  // summands are rounded
  expect_close(run(*backend, mixture.spec, x.view), sum, error, error);
}

}  // namespace
}  // namespace nanovllm::test
