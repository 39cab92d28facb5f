#include "base/philox.h"

#include <gtest/gtest.h>

namespace nanovllm {
namespace {

using Block = std::array<uint32_t, 4>;

// The known answers that the generator's authors publish with Random123 (kat_vectors).
TEST(Philox, GivesTheAuthorsKnownAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(
      philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
      (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformUsesAllBitsOfSeedAndPosition) {
  const double u = philox_uniform(1, 1);
  EXPECT_NE(u, philox_uniform(1 + (uint64_t{1} << 32), 1));
  EXPECT_NE(u, philox_uniform(1, 1 + (uint64_t{1} << 32)));
  EXPECT_NE(u, philox_uniform(2, 1));
  EXPECT_NE(u, philox_uniform(1, 2));
  EXPECT_EQ(u, philox_uniform(1, 1));
}

TEST(Philox, UniformFillsTheUnitIntervalEvenly) {
  constexpr int kDraws = 100000;
  constexpr int kBins = 100;
  std::array<int, kBins> counts{};
  for (int i = 0; i < kDraws; ++i) {
    const double u = philox_uniform(42, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++counts[static_cast<int>(u * kBins)];
  }
  double chi_square = 0;
  for (const int count : counts) {
    const double expected = static_cast<double>(kDraws) / kBins;
    chi_square += (count - expected) * (count - expected) / expected;
  }
  // 99 degrees of freedom: 149 and 54 cut off one in a thousand at either end.
  EXPECT_LT(chi_square, 149);
  EXPECT_GT(chi_square, 54);
}

}  // namespace
}  // namespace nanovllm
