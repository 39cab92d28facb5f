#include "engine/draft_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace nanovllm {
namespace {

TEST(DraftBlocks, TheLeastRecentlyUsedGivesWay) {
  DraftBlocks blocks(10, 3);
  const int a = blocks.take(7), b = blocks.take(2), c = blocks.take(5);
  EXPECT_EQ((std::vector{a, b, c}), (std::vector{0, 1, 2}));
  EXPECT_EQ(blocks.take(2), b);
  EXPECT_EQ(blocks.take(0), -1);  // all are of this step
  blocks.begin_step();
  EXPECT_EQ(blocks.take(7), a);
  EXPECT_EQ(blocks.take(0), b);
  EXPECT_FALSE(blocks.has(2));
  EXPECT_TRUE(blocks.has(5));
  EXPECT_EQ(blocks.take(2), c);
  EXPECT_FALSE(blocks.has(5));
  EXPECT_EQ(blocks.take(5), -1);
}

TEST(DraftBlocks, EachIsOfOneBlockOfTheTarget) {
  constexpr int kTargets = 40, kBlocks = 12;
  DraftBlocks blocks(kTargets, kBlocks);
  std::map<int, int> taken;  // by target
  std::mt19937 rng(1);
  for (int step = 0; step < 2000; ++step) {
    blocks.begin_step();
    std::erase_if(taken, [&](const auto& entry) { return !blocks.has(entry.first); });
    for (int i = 0; i < kBlocks; ++i) {
      const int target = static_cast<int>(rng() % kTargets);
      const bool had_one = blocks.has(target);
      const int block = blocks.take(target);
      ASSERT_TRUE(block >= 0 && block < kBlocks);
      if (had_one) {
        ASSERT_EQ(taken.at(target), block);
      }
      std::erase_if(taken, [&](const auto& entry) { return entry.second == block; });
      taken[target] = block;
    }
    ASSERT_LE(std::ranges::count_if(taken, [&](const auto& e) { return blocks.has(e.first); }),
              kBlocks);
  }
}

}  // namespace
}  // namespace nanovllm
