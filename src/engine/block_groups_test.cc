// Groups of layers with block tables of their own; and random texts in random groups.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "engine/block_manager.h"
#include "engine/block_manager_testing.h"

namespace nanovllm::block_tests {
namespace {

// Groups: one that sees everything, and one that sees the newest token and four before it.
const std::vector<int> kAllAndFive = {0, 5};

// Computes and registers up to num_tokens tokens, in one step.
void compute_up_to(BlockManager& blocks, Sequence& sequence, int num_tokens) {
  ASSERT_TRUE(blocks.reserve(sequence, num_tokens));
  sequence.num_computed_tokens = num_tokens;
  blocks.register_computed(sequence, num_tokens);
}

int num_held(const Sequence& sequence) {
  return static_cast<int>(std::ssize(sequence.block_table) -
                          std::ranges::count(sequence.block_table, -1));
}

TEST(CacheGroups, AWindowHasBlocksOfWhatItSeesAndOfTheStep) {
  BlockManager blocks(40, kBlockSize, kAllAndFive);
  Sequence a = make_sequence(text(40));
  ASSERT_TRUE(blocks.allocate(a));
  EXPECT_EQ(num_held(a), 10);  // the whole text, for those who see it
  for (int computed = 0; computed < 40;) {
    computed = a.num_computed_tokens = std::min(40, computed + 6);
    ASSERT_TRUE(blocks.reserve(a, computed));
    blocks.register_computed(a, computed);
    EXPECT_LE(num_held(a), 10 + (5 + kBlockSize - 1) / kBlockSize + 1);
    EXPECT_EQ(wrong(blocks, {&a}), "");
  }
  // Tokens 36 to 39 and the one that comes are seen by the next: its own block is not there yet.
  EXPECT_EQ(num_held(a), 10 + 1);
  EXPECT_EQ(blocks.num_cached_blocks(), 20);
}

TEST(CacheGroups, GuessesGiveNothingBack) {
  BlockManager blocks(40, kBlockSize, kAllAndFive);
  Sequence a = make_sequence(text(12));
  ASSERT_TRUE(blocks.allocate(a));
  compute_up_to(blocks, a, 12);
  const int held = num_held(a);
  ASSERT_TRUE(blocks.reserve(a, 20));
  a.num_computed_tokens = 20;  // of which 8 are drafts
  EXPECT_TRUE(blocks.may_give_back(a));
  a.num_computed_tokens = 13;  // one of which was right
  a.token_ids.push_back(12);
  blocks.register_computed(a, 13);
  EXPECT_EQ(num_held(a), held + 2 * 2);
  EXPECT_EQ(wrong(blocks, {&a}), "");
}

TEST(CacheGroups, AStepGivesNothingBackBeforeItsWindowLeavesABlock) {
  BlockManager blocks(40, kBlockSize, kAllAndFive);
  Sequence a = make_sequence(text(30));
  ASSERT_TRUE(blocks.allocate(a));
  const auto may_give_back_at = [&](int num_tokens) {
    EXPECT_TRUE(blocks.reserve(a, num_tokens));
    a.num_computed_tokens = num_tokens;
    return blocks.may_give_back(a);
  };
  EXPECT_FALSE(may_give_back_at(7));  // the next token sees tokens 3 to 7
  EXPECT_TRUE(may_give_back_at(8));
  blocks.register_computed(a, 8);
  EXPECT_FALSE(may_give_back_at(11));
  EXPECT_TRUE(may_give_back_at(12));
  BlockManager without_windows(40, kBlockSize);
  Sequence b = make_sequence(text(30));
  ASSERT_TRUE(without_windows.allocate(b));
  b.num_computed_tokens = 30;
  EXPECT_FALSE(without_windows.may_give_back(b));
}

// Of the text, the window's blocks are kept only where they were not taken.
TEST(CacheGroups, APrefixEndsWhereEveryGroupHasWhatIsSeenBehindIt) {
  BlockManager blocks(24, kBlockSize, kAllAndFive);
  Sequence a = make_sequence(text(24));
  ASSERT_TRUE(blocks.allocate(a));
  for (int end = kBlockSize; end <= 24; end += kBlockSize) compute_up_to(blocks, a, end);
  blocks.deallocate(a);
  Sequence b = make_sequence(text(18));
  ASSERT_TRUE(blocks.allocate(b));
  EXPECT_EQ(b.num_computed_tokens, 16);
  EXPECT_EQ(num_held(b), 5 + 1);  // all that is seen, and tokens 12 to 15
  EXPECT_EQ(wrong(blocks, {&b}), "");
  blocks.deallocate(b);

  // Taken are the blocks without content, and those that the window gave back first.
  Sequence other = make_sequence(text(4 * 14, 500));
  other.num_cacheable_tokens = 0;
  ASSERT_TRUE(blocks.allocate(other));
  EXPECT_EQ(num_held(other), 14);
  blocks.deallocate(other);
  Sequence c = make_sequence(text(10)), d = make_sequence(text(25));
  ASSERT_TRUE(blocks.allocate(c));
  EXPECT_EQ(c.num_computed_tokens, 0);
  ASSERT_TRUE(blocks.allocate(d));
  EXPECT_EQ(d.num_computed_tokens, 24);
  EXPECT_EQ(wrong(blocks, {&c, &d}), "");
}

// The last token is computed again, and sees a token more than the next one would.
TEST(CacheGroups, AFullyCachedTextHasWhatItsLastTokenSees) {
  BlockManager blocks(24, kBlockSize, kAllAndFive);
  Sequence a = make_sequence(text(12)), b = make_sequence(text(12));
  ASSERT_TRUE(blocks.allocate(a));
  compute_up_to(blocks, a, 12);
  ASSERT_TRUE(blocks.allocate(b));
  EXPECT_EQ(b.num_computed_tokens, 11);
  EXPECT_EQ(num_held(b), 3 + 2);  // tokens 7 to 11
  EXPECT_EQ(wrong(blocks, {&a, &b}), "");
}

TEST(CacheGroups, ATextOfWindowsAloneGoesOnWhereItsBeginningWasTaken) {
  BlockManager blocks(4, kBlockSize, {5});
  Sequence a = make_sequence(text(40));
  ASSERT_TRUE(blocks.allocate(a));
  for (int end = kBlockSize; end <= 40; end += kBlockSize) compute_up_to(blocks, a, end);
  blocks.deallocate(a);
  Sequence b = make_sequence(text(44));
  ASSERT_TRUE(blocks.allocate(b));
  EXPECT_EQ(b.num_computed_tokens, 40);
  EXPECT_EQ(num_held(b), 1);
  EXPECT_EQ(wrong(blocks, {&b}), "");
}

TEST(CacheGroups, RoomIsToldForAsManyTokensAsThereAreBlocks) {
  BlockManager blocks(16, kBlockSize, {0, 5, 5});
  Sequence a = make_sequence(text(40));
  ASSERT_TRUE(blocks.allocate(a));  // 10 blocks; 6 are left for both windows
  EXPECT_EQ(blocks.num_tokens_with_room(a, 40), 12);
  EXPECT_FALSE(blocks.reserve(a, 13));
  EXPECT_TRUE(blocks.reserve(a, 12));
  EXPECT_EQ(blocks.num_tokens_with_room(a, 13), 12);
  EXPECT_EQ(wrong(blocks, {&a}), "");
  Sequence b = make_sequence(text(41));
  blocks.deallocate(a);
  EXPECT_FALSE(blocks.allocate(b));  // needs 11 + 3 + 3
}

// Random texts over a tiny alphabet, so that beginnings are often equal, against the rule that a
// block is shared exactly when everything up to its end is equal.
class BlockManagerProperty : public ::testing::TestWithParam<std::tuple<bool, std::vector<int>>> {};

TEST_P(BlockManagerProperty, BooksBalanceAndSharedBlocksHoldEqualTexts) {
  std::mt19937 rng(17);
  const auto pick = [&](int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); };
  const auto weak_hash = [](uint64_t, std::span<const int32_t> ids) -> uint64_t { return ids[0]; };
  const auto& [collides, windows] = GetParam();
  const int num_groups = static_cast<int>(windows.size()), num_blocks = 24 * num_groups;
  auto blocks = collides ? BlockManager(num_blocks, 2, weak_hash, windows)
                         : BlockManager(num_blocks, 2, windows);
  std::vector<std::unique_ptr<Sequence>> live;
  int num_hits = 0;
  for (int round = 0; round < 4000; ++round) {
    if (pick(3) > 0) {
      std::vector<int32_t> ids(1 + pick(12));
      for (int32_t& id : ids) id = pick(2);
      auto sequence = std::make_unique<Sequence>(round, 0, ids, kMaxNumTokens);
      sequence->num_cacheable_tokens = pick(8) == 0 ? pick(12) : kMaxNumTokens;
      if (blocks.allocate(*sequence)) {
        num_hits += sequence->num_computed_tokens > 1 ? 1 : 0;
        live.push_back(std::move(sequence));
      }
    }
    for (auto& sequence : live) {
      if (pick(2) == 0) continue;
      const int most =
          std::min(sequence->num_tokens(), sequence->num_computed_tokens + 1 + pick(4));
      const int end =
          std::max(sequence->num_computed_tokens, blocks.num_tokens_with_room(*sequence, most));
      ASSERT_TRUE(blocks.reserve(*sequence, end));
      sequence->num_computed_tokens = end;
      blocks.register_computed(*sequence, end);
      for (int group = 0; group < num_groups; ++group) {
        if (windows[group] == 0) continue;
        int held = 0;
        for (size_t i = group; i < sequence->block_table.size(); i += num_groups) {
          held += sequence->block_table[i] >= 0 ? 1 : 0;
        }
        ASSERT_LE(held, (windows[group] + 1) / 2 + 1);
      }
      if (sequence->num_computed_tokens == sequence->num_tokens() &&
          blocks.reserve(*sequence, sequence->num_tokens() + 1)) {
        sequence->token_ids.push_back(pick(2));
      }
    }
    if (!live.empty() && pick(3) == 0) {
      const auto victim = live.begin() + pick(static_cast<int>(live.size()));
      blocks.deallocate(**victim);
      live.erase(victim);
    }
    std::vector<const Sequence*> holders;
    for (const auto& sequence : live) holders.push_back(sequence.get());
    ASSERT_EQ(blocks.check_integrity(holders), "") << "round " << round;
    for (const auto& a : live) {
      for (const auto& b : live) {
        for (size_t i = 0; i < std::min(a->block_table.size(), b->block_table.size()); ++i) {
          if (a == b || a->block_table[i] < 0 || a->block_table[i] != b->block_table[i]) continue;
          const auto end = static_cast<ptrdiff_t>(i) / num_groups * 2 + 2;
          ASSERT_TRUE(
              std::equal(a->token_ids.begin(), a->token_ids.begin() + end, b->token_ids.begin()))
              << "round " << round;
        }
      }
    }
  }
  EXPECT_GT(num_hits, 100);
  for (auto& sequence : live) blocks.deallocate(*sequence);
  EXPECT_EQ(blocks.num_free_blocks(), num_blocks);
  EXPECT_EQ(blocks.check_integrity({}), "");
}

INSTANTIATE_TEST_SUITE_P(
    HashFunctions, BlockManagerProperty,
    ::testing::Combine(::testing::Bool(), ::testing::Values(std::vector{0}, std::vector{0, 3},
                                                            std::vector{5}, std::vector{1, 0, 4, 4},
                                                            std::vector{1}, std::vector{2, 7})),
    [](const auto& test) {
      std::string name = std::get<0>(test.param) ? "Colliding" : "XxHash";
      for (const int window : std::get<1>(test.param)) name += "_" + std::to_string(window);
      return name;
    });

}  // namespace
}  // namespace nanovllm::block_tests
