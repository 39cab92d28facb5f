#include "backend/cpu/sampling/sampling_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/isas_testing.h"

namespace nanovllm {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> normal_row(size_t n, uint32_t seed, float spread) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

class SamplingKernelsTest : public ::testing::TestWithParam<Isa> {
 protected:
  const SamplingKernels kernels_ = sampling_kernels(GetParam());
};

TEST_P(SamplingKernelsTest, BlockMaxIsTheLargestOfEachBlockWhateverItsSize) {
  for (const size_t n : {1, 15, 16, 17, 127, 128, 129, 300, 1024}) {
    const std::vector<float> x = normal_row(n, static_cast<uint32_t>(n), 3);
    std::vector<float> max(num_sample_blocks(static_cast<int64_t>(n)));
    kernels_.block_max(x.data(), static_cast<int64_t>(n), max.data());
    for (size_t b = 0; b < max.size(); ++b) {
      const auto begin = x.begin() + static_cast<int64_t>(b * kSampleBlock);
      const auto end = x.begin() + static_cast<int64_t>(std::min(n, (b + 1) * kSampleBlock));
      EXPECT_EQ(max[b], *std::max_element(begin, end)) << "n " << n << " block " << b;
    }
  }
}

TEST_P(SamplingKernelsTest, BlockMaxIsNanWhereverTheNanIs) {
  constexpr int kSize = 2 * kSampleBlock + 37;
  std::vector<float> x = normal_row(kSize, 1, 1);
  for (int i = 0; i < kSize; ++i) {
    const float saved = std::exchange(x[i], kNan);
    float max[3];
    kernels_.block_max(x.data(), kSize, max);
    for (int b = 0; b < 3; ++b) EXPECT_EQ(std::isnan(max[b]), b == i / kSampleBlock) << i;
    x[i] = saved;
  }
}

TEST_P(SamplingKernelsTest, MasksTakeAwayWhatTheirBitsDoNotNameAndKnowWhatIsLargestThen) {
  std::mt19937 rng(4);
  for (const int n : {1, 31, 32, 33, 127, 128, 129, 300, 1024}) {
    for (const int kind : {0, 1, 2, 3}) {  // nothing allowed, all, every other word, at random
      const std::vector<float> x = normal_row(n, static_cast<uint32_t>(n), 3);
      std::vector<uint32_t> words((n + 31) / 32);
      for (size_t w = 0; w < words.size(); ++w) {
        words[w] = kind == 0 ? 0 : kind == 1 ? ~0u : kind == 2 ? (w % 2 == 0 ? ~0u : 0) : rng();
      }
      std::vector<float> expected = x, got = x;
      for (int i = 0; i < n; ++i) {
        if ((words[i / 32] >> i % 32 & 1) == 0) expected[i] = -kInfinity;
      }
      std::vector<float> max(num_sample_blocks(n)), expected_max(max.size());
      kernels_.block_max(x.data(), n, max.data());
      kernels_.mask(got.data(), n, words.data(), max.data());
      EXPECT_EQ(got, expected) << n << ' ' << kind;
      kernels_.block_max(expected.data(), n, expected_max.data());
      EXPECT_EQ(max, expected_max) << n << ' ' << kind;
    }
  }
}

TEST_P(SamplingKernelsTest, WeightsAreExponentialsDownToWhereFloatsEnd) {
  std::vector<float> x(kSampleBlock);
  for (int i = 0; i < kSampleBlock; ++i) x[i] = 5 - 0.7f * static_cast<float>(i);
  std::vector<float> weight(kSampleBlock);
  kernels_.weights(x.data(), kSampleBlock, {5, 1, -kInfinity}, weight.data());
  EXPECT_EQ(weight[0], 1);
  for (int i = 0; i < kSampleBlock; ++i) {
    const double exact = std::exp(static_cast<double>(x[i]) - 5);
    if (x[i] - 5 < -87.0f) {
      EXPECT_EQ(weight[i], 0) << x[i];
    } else {
      EXPECT_NEAR(weight[i] / exact, 1, 3e-7) << x[i];
    }
  }
}

TEST_P(SamplingKernelsTest, WeightsKeepTheThresholdItselfAndNothingBelow) {
  const std::vector<float> x = {1, 2, std::nextafter(2.0f, 0.0f), 3, -kInfinity};
  std::vector<float> weight(kSampleBlock);
  kernels_.weights(x.data(), 5, {3, 2, 2}, weight.data());
  EXPECT_EQ(weight[0], 0);
  EXPECT_NEAR(weight[1], std::exp(-2), 1e-7);
  EXPECT_EQ(weight[2], 0);
  EXPECT_EQ(weight[3], 1);
  EXPECT_EQ(weight[4], 0);
}

// Where neighbouring floats are far apart for the temperature, the limit can't be told in logits.
TEST_P(SamplingKernelsTest, LargeLogitsWeighNothingBelowTheSmallestFloat) {
  const float unit = std::ldexp(1.0f, -15);  // between neighbours from 256 on
  std::vector<float> x;
  for (int i = 0; i < 40; ++i) x.push_back(300 - static_cast<float>(i) * unit);
  std::vector<float> weight(kSampleBlock);
  kernels_.weights(x.data(), 40, {300, 1e5f, -kInfinity}, weight.data());
  for (int i = 0; i < 40; ++i) {
    const double y = -static_cast<double>(i) * unit * 1e5;
    EXPECT_NEAR(weight[i], y < -87 ? 0 : std::exp(y), 3e-7 * std::exp(y)) << i;
  }
}

TEST_P(SamplingKernelsTest, MinusInfinityWeighsNothingAtAnyTemperature) {
  const std::vector<float> x = {0, -kInfinity};
  std::vector<float> weight(kSampleBlock);
  for (const float scale : {1e-38f, 1e-6f, 1.0f, 1e5f}) {
    kernels_.weights(x.data(), 2, {0, scale, -kInfinity}, weight.data());
    EXPECT_EQ(weight[0], 1);
    EXPECT_EQ(weight[1], 0);
  }
}

TEST_P(SamplingKernelsTest, BlockMassIsTheSumOfTheWeights) {
  constexpr int kSize = 5 * kSampleBlock + 1;
  const std::vector<float> x = normal_row(kSize, 2, 2);
  std::vector<float> max(6);
  std::vector<float> mass(6);
  kernels_.block_max(x.data(), kSize, max.data());
  const WeightParams params{10, 0.5f, 0.25f};
  kernels_.block_mass(x.data(), kSize, max.data(), params, mass.data());
  for (int b = 0; b < 6; ++b) {
    const int n = std::min(kSampleBlock, kSize - b * kSampleBlock);
    double sum = 0;
    for (int i = 0; i < n; ++i) {
      const double v = x[b * kSampleBlock + i];
      if (v >= params.threshold) sum += std::exp((v - params.top) * params.scale);
    }
    EXPECT_NEAR(mass[b], sum, 1e-6 * sum + 1e-12) << b;
  }
}

TEST_P(SamplingKernelsTest, BinsGrowAsLogitsFall) {
  std::vector<float> x = normal_row(100, 3, 2);
  x.push_back(-kInfinity);
  const float top = *std::max_element(x.begin(), x.end());
  std::vector<int32_t> bin(kSampleBlock);
  kernels_.bins(x.data(), static_cast<int>(x.size()), top, 10, 31, bin.data());
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(bin[i], static_cast<int>(std::min(31.0f, (top - x[i]) * 10))) << i;
  }
}

TEST_P(SamplingKernelsTest, CountAtLeastCountsEquals) {
  std::vector<float> x(1000);
  for (int i = 0; i < 1000; ++i) x[i] = static_cast<float>((i * 7) % 10);
  for (const int64_t n : {0, 1, 15, 16, 17, 1000}) {
    for (const float value : {-1.0f, 0.0f, 4.0f, 9.0f, 10.0f}) {
      const auto expected =
          std::count_if(x.begin(), x.begin() + n, [&](float v) { return v >= value; });
      EXPECT_EQ(kernels_.count_at_least(x.data(), n, value), expected);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, SamplingKernelsTest, ::testing::ValuesIn(available_isas()),
                         [](const auto& isa) { return std::string(to_string(isa.param)); });

}  // namespace
}  // namespace nanovllm
