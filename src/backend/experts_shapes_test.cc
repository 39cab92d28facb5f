// Mixtures of experts at the limits of kernels' tiles, against the scalar reference.
#include "backend/ops_test_support.h"

namespace nanovllm::test {
namespace {

struct MixtureShape {
  int hidden, width, num_experts, num_active, shared_width = 0;
  bool has_bias = false;
  Activation activation = Activation::kSilu;
};

// Random weights and the spec that points to them.
class ShapedMixture {
 public:
  ShapedMixture(const MixtureShape& shape, DType dtype) : dtype_(dtype), shape_(shape) {
    spec.router = matrix({shape.num_experts}, shape.hidden, shape.has_bias);
    spec.routing.num_active = shape.num_active;
    spec.routing.renormalise = true;
    for (int i = 0; i < shape.num_experts; ++i) spec.experts.push_back(dense(shape.width));
    if (shape.shared_width == 0) return;
    spec.shared = dense(shape.shared_width);
    spec.shared_gate = matrix({1}, shape.hidden, false);
  }
  HostTensor rows(int64_t n) {
    return {random_.floats(n * shape_.hidden, -2, 2), dtype_, {n, shape_.hidden}};
  }

  Experts spec;

 private:
  Dense dense(int64_t width) {
    return {matrix({width, width}, shape_.hidden, shape_.has_bias), shape_.activation,
            matrix({shape_.hidden}, width, shape_.has_bias)};
  }
  Matrix matrix(std::initializer_list<int64_t> rows, int64_t cols, bool has_bias) {
    Matrix matrix;
    for (const int64_t n : rows) {
      const float range = 1.7f / std::sqrt(static_cast<float>(cols));
      const HostTensor& m = kept_.emplace_back(
          HostTensor(random_.floats(n * cols, -range, range), dtype_, {n, cols}));
      matrix.pieces.push_back(
          {.data = m.bytes.data(), .dtype = dtype_, .rows = n, .cols = cols, .row_stride = cols});
    }
    if (has_bias) matrix.bias = random_.floats(matrix.out_features(), -0.5f, 0.5f);
    return matrix;
  }

  Random random_{11};
  const DType dtype_;
  const MixtureShape shape_;
  std::vector<HostTensor> kept_;
};

class MixtureShapes : public OpsTest {
 protected:
  static HostTensor run(Backend& backend, ExpertWeights& weights, const Tensor& x) {
    const DeviceTensor in = upload(backend, x);
    // Of NaNs, so that what is not written shows.
    HostTensor nans(x.dtype, {x.rows(), x.row_size()});
    std::fill(nans.bytes.begin(), nans.bytes.end(), '\xff');
    const DeviceTensor out = upload(backend, nans.view);
    backend.experts(out.view, in.view, weights);
    return download(backend, out.view);
  }
  // Each row on its own: a wrong one must not hide among the others.
  void expect_rows_close(const HostTensor& actual, const std::vector<float>& expected) const {
    const double limit = act() == DType::kBFloat16 ? 1.2e-2 : 1e-5;
    const int64_t width = actual.view.row_size();
    int wrong = 0;
    for (int64_t r = 0; r < actual.view.rows(); ++r) {
      double error = 0, norm = 0;
      for (int64_t i = r * width; i < (r + 1) * width; ++i) {
        const double wanted = expected[static_cast<size_t>(i)], is = actual.at(i);
        error += (is - wanted) * (is - wanted);
        norm += wanted * wanted;
      }
      if (std::sqrt(error) <= limit * std::sqrt(norm)) continue;
      if (++wrong <= 3) ADD_FAILURE() << "row " << r << ": off by " << std::sqrt(error / norm);
    }
    EXPECT_EQ(wrong, 0) << "of " << actual.view.rows() << " rows";
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, MixtureShapes, every_backend_and_dtype(), name_of);

TEST_P(MixtureShapes, EachMatchesReference) {
  const auto backend = make();
  const std::pair<MixtureShape, std::vector<int>> cases[] = {
      {{64, 64, 1, 1}, {1, 17, 129}},
      {{128, 64, 8, 8}, {1, 3, 40}},
      {{256, 192, full_or_reduced(128, 24), 8}, {1, 2, 33}},
      {{192, 136, 4, 2}, {31, 32, 33, 300}},
      {{72, 40, 5, 2, 0, true}, {1, 9, 100}},
      {{33, 20, 6, 3}, {1, 70}},
      {{64, 32, 4, 2, 24, true, Activation::kClampedSwiglu}, {1, 150}},
      {{64, 32, 4, 2, 40, false, Activation::kGelu}, {5, 200}},
      {{64, 32, 4, 2, 0, false, Activation::kGeluTanh}, {5}},
  };
  for (const auto& [shape, counts] : cases) {
    ShapedMixture mixture(shape, act());
    const auto weights = backend->make_experts(mixture.spec, act(), 300);
    for (const int rows : counts) {
      SCOPED_TRACE(testing::Message()
                   << "hidden " << shape.hidden << ", width " << shape.width << ", rows " << rows);
      const HostTensor x = mixture.rows(rows);
      expect_rows_close(run(*backend, *weights, x.view), reference::experts(x.view, mixture.spec));
    }
  }
}

TEST_P(MixtureShapes, AllRowsMayChooseTheSameExperts) {
  const auto backend = make();
  ShapedMixture mixture({128, 96, 16, 2}, act());
  mixture.spec.router.bias.assign(16, 0.f);
  mixture.spec.router.bias[3] = mixture.spec.router.bias[15] = 100;
  const auto weights = backend->make_experts(mixture.spec, act(), 300);
  for (const int rows : {1, 16, 65, 150, 300}) {
    const HostTensor x = mixture.rows(rows);
    expect_rows_close(run(*backend, *weights, x.view), reference::experts(x.view, mixture.spec));
  }
}

TEST_P(MixtureShapes, ARanksShareIsOfItsExpertsOnly) {
  const auto backend = make();
  ShapedMixture mixture({128, 64, 16, 4}, act());
  mixture.spec.first = 5;
  mixture.spec.experts.resize(3);
  const auto weights = backend->make_experts(mixture.spec, act(), 200);
  for (const int rows : {1, 40, 200}) {
    const HostTensor x = mixture.rows(rows);
    const HostTensor out = run(*backend, *weights, x.view);
    expect_rows_close(out, reference::experts(x.view, mixture.spec));
  }
}

// From one row to so many that kernels change; where steps need not be deterministic, as many as
// the kernels for few rows take.
TEST_P(MixtureShapes, ARowsBitsDoNotDependOnItsMates) {
  const auto backend = make();
  ShapedMixture mixture({256, 136, 4, 2}, act());
  const auto weights = backend->make_experts(mixture.spec, act(), 400);
  const HostTensor x = mixture.rows(400);
  const int most = backend_case().is_deterministic ? 400 : 2;
  const HostTensor all = run(*backend, *weights, x.view.first_rows(most));
  for (int begin = 0, n = 1; begin + n <= most; begin += n, n = n * 2 + 1) {
    const HostTensor some = run(*backend, *weights, x.view.slice_rows(begin, begin + n));
    for (int r = 0; r < n; ++r) expect_same_bits(some.row(r), all.row(begin + r));
  }
}

TEST_P(MixtureShapes, AGraphTakesOtherRowsToOtherExperts) {
  const auto backend = make();
  ShapedMixture mixture({128, 64, 32, 4, 64}, act());
  const auto weights = backend->make_experts(mixture.spec, act(), 300);
  for (const int rows : {1, 20, 300}) {
    const HostTensor first = mixture.rows(rows), second = mixture.rows(rows);
    const DeviceTensor in = upload(*backend, first.view);
    const DeviceTensor out = device_tensor(*backend, act(), {rows, 128});
    backend->experts(out.view, in.view, *weights);
    const auto graph = backend->capture([&] { backend->experts(out.view, in.view, *weights); });
    if (graph == nullptr) GTEST_SKIP() << "this backend has no graphs";
    backend->upload(in.view.data, second.view.data, second.bytes.size());
    backend->launch(*graph);
    const HostTensor by_graph = download(*backend, out.view);
    expect_same_bits(by_graph.bytes, run(*backend, *weights, second.view).bytes);
  }
}

}  // namespace
}  // namespace nanovllm::test
