// Mixtures of experts whose weights are codes.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/isas_testing.h"
#include "backend/cpu/linear/random_codes_testing.h"

namespace nanovllm {
namespace {

constexpr int64_t kHidden = 256, kWidth = 128, kRows = 40;
constexpr int kNumExperts = 8;

class ExpertsOnCodes : public ::testing::TestWithParam<Isa> {
 protected:
  std::vector<float> run(CpuBackend& cpu, ExpertWeights& weights, int64_t begin, int64_t end) {
    std::vector<float> out(static_cast<size_t>((end - begin) * kHidden));
    cpu.experts(Tensor(out.data(), kF32, {end - begin, kHidden}),
                Tensor(x_.data() + begin * kHidden, kF32, {end - begin, kHidden}), weights);
    return out;
  }
  HostMatrix codes(const CodeFormat& format, int64_t rows, int64_t cols) {
    return decoders_.emplace_back(format, rows, cols).matrix();
  }
  Experts mixture(const CodeFormat& format) {
    Experts experts;
    experts.router.pieces = {{.data = router_.data(),
                              .dtype = kF32,
                              .rows = kNumExperts,
                              .cols = kHidden,
                              .row_stride = kHidden}};
    experts.routing.num_active = 2;
    for (int i = 0; i < kNumExperts; ++i) {
      Dense expert;
      expert.activation = Activation::kSilu;
      expert.gate_up.pieces = {codes(format, kWidth, kHidden), codes(format, kWidth, kHidden)};
      expert.down.pieces = {codes(format, kHidden, kWidth)};
      experts.experts.push_back(expert);
    }
    return experts;
  }
  void SetUp() override {
    std::mt19937 rng(3);
    std::normal_distribution<float> normal(0, 0.05f);
    x_.resize(kRows * kHidden);
    router_.resize(kNumExperts * kHidden);
    for (float& x : x_) x = normal(rng);
    for (float& x : router_) x = normal(rng);
  }
  static void drop_codes(Matrix& matrix) {
    for (HostMatrix& piece : matrix.pieces) piece.codes = nullptr;
  }

  std::deque<RandomDecoder> decoders_;
  std::vector<float> x_, router_;
};

TEST_P(ExpertsOnCodes, GiveWhatDecodedOnesGive) {
  for (const auto& [name, format] : kFormats) {
    SCOPED_TRACE(name);
    CpuBackend cpu({2, GetParam()});
    Experts spec = mixture(format);
    const auto weights = cpu.make_experts(spec, kF32, kRows);
    EXPECT_EQ(weights->layout, format.layout);
    for (Dense& expert : spec.experts) {
      drop_codes(expert.gate_up);
      drop_codes(expert.down);
    }
    const auto plain = cpu.make_experts(spec, kF32, kRows);
    EXPECT_EQ(plain->layout, WeightLayout::kPlain);
    EXPECT_LT(weights->bytes, plain->bytes / 3);
    const std::vector<float> wanted = run(cpu, *plain, 0, kRows);
    const std::vector<float> got = run(cpu, *weights, 0, kRows);
    float largest = 0;
    for (const float value : wanted) largest = std::max(largest, std::abs(value));
    ASSERT_GT(largest, 0);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], largest * 1e-5f) << i;
    for (int64_t r = 0; r < kRows; ++r) {
      const std::vector<float> one = run(cpu, *weights, r, r + 1);
      ASSERT_EQ(std::memcmp(one.data(), got.data() + r * kHidden, kHidden * 4), 0) << "row " << r;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, ExpertsOnCodes, ::testing::ValuesIn(available_isas()),
                         [](const auto& param) { return std::string(to_string(param.param)); });

}  // namespace
}  // namespace nanovllm
