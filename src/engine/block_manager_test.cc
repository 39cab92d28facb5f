#include "engine/block_manager.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "engine/block_manager_testing.h"

namespace nanovllm::block_tests {
namespace {

TEST(BlockManager, GivesEverySequenceBlocksOfItsOwn) {
  BlockManager blocks(6, kBlockSize);
  Sequence a = make_sequence(text(9)), b = make_sequence(text(12, 100));
  ASSERT_TRUE(blocks.allocate(a));
  ASSERT_TRUE(blocks.allocate(b));
  EXPECT_EQ(a.block_table.size(), 3u);
  EXPECT_EQ(b.block_table.size(), 3u);
  EXPECT_EQ(blocks.num_free_blocks(), 0);
  EXPECT_EQ(wrong(blocks, {&a, &b}), "");
  a.num_computed_tokens = 9;
  blocks.deallocate(a);
  EXPECT_EQ(a.num_computed_tokens, 0);
  EXPECT_EQ(blocks.num_free_blocks(), 3);
  EXPECT_EQ(wrong(blocks, {&b}), "");
}

TEST(BlockManager, ChangesNothingWhenTooFewBlocksAreFree) {
  BlockManager blocks(3, kBlockSize);
  Sequence a = make_sequence(text(8)), b = make_sequence(text(5, 50));
  ASSERT_TRUE(blocks.allocate(a));
  EXPECT_FALSE(blocks.allocate(b));
  EXPECT_TRUE(b.block_table.empty());
  EXPECT_TRUE(blocks.reserve(a, 12));
  EXPECT_FALSE(blocks.reserve(a, 13));
  EXPECT_EQ(a.block_table.size(), 3u);
  EXPECT_EQ(wrong(blocks, {&a, &b}), "");
}

TEST(BlockManager, AppendsABlockOnlyWhereOneBegins) {
  BlockManager blocks(3, kBlockSize);
  Sequence a = make_sequence(text(3));
  ASSERT_TRUE(blocks.allocate(a));
  ASSERT_TRUE(blocks.reserve(a, 4));
  EXPECT_EQ(a.block_table.size(), 1u);
  ASSERT_TRUE(blocks.reserve(a, 5));
  EXPECT_EQ(a.block_table.size(), 2u);
}

TEST(BlockManager, RoomForGuessesGoesBack) {
  for (const std::vector<int>& windows : {std::vector<int>{0}, std::vector<int>{0, 6, 6}}) {
    BlockManager blocks(40, kBlockSize, windows);
    Sequence a = make_sequence(text(6));
    ASSERT_TRUE(blocks.allocate(a));
    ASSERT_TRUE(blocks.reserve(a, 6));
    const int num_used = blocks.num_used_blocks();
    ASSERT_TRUE(blocks.reserve(a, 23));
    EXPECT_EQ(blocks.num_used_blocks(), 3 * num_used);
    EXPECT_EQ(wrong(blocks, {&a}), "");
    blocks.shrink(a, 6);
    EXPECT_EQ(blocks.num_used_blocks(), num_used);
    EXPECT_EQ(wrong(blocks, {&a}), "");
    blocks.shrink(a, 8);  // its last block is not full
    EXPECT_EQ(blocks.num_used_blocks(), num_used);
    blocks.deallocate(a);
    EXPECT_EQ(blocks.num_used_blocks(), 0);
  }
}

TEST(PrefixCache, EqualBeginningsShareBlocks) {
  BlockManager blocks(8, kBlockSize);
  Sequence a = make_sequence(text(10));
  compute(blocks, a);
  auto ids = text(10);
  ids[9] = 77;
  Sequence b = make_sequence(ids);
  ASSERT_TRUE(blocks.allocate(b));
  EXPECT_EQ(b.num_computed_tokens, 8);
  EXPECT_EQ(b.block_table[0], a.block_table[0]);
  EXPECT_EQ(b.block_table[1], a.block_table[1]);
  EXPECT_NE(b.block_table[2], a.block_table[2]);
  EXPECT_EQ(blocks.num_used_blocks(), 4);
  EXPECT_EQ(wrong(blocks, {&a, &b}), "");
}

TEST(PrefixCache, NothingIsFoundBeforeItIsComputed) {
  BlockManager blocks(8, kBlockSize);
  Sequence a = make_sequence(text(9)), b = make_sequence(text(9));
  ASSERT_TRUE(blocks.allocate(a));
  blocks.register_computed(a, 7);  // the second block lacks a token
  ASSERT_TRUE(blocks.allocate(b));
  EXPECT_EQ(b.num_computed_tokens, 4);
  EXPECT_EQ(wrong(blocks, {&a, &b}), "");
}

TEST(PrefixCache, FullyCachedPromptRecomputesOneToken) {
  BlockManager blocks(8, kBlockSize);
  Sequence a = make_sequence(text(8)), b = make_sequence(text(8));
  compute(blocks, a);
  ASSERT_TRUE(blocks.allocate(b));
  EXPECT_EQ(b.num_computed_tokens, 7);
  EXPECT_EQ(b.chain.num_blocks, 2);
  EXPECT_EQ(b.block_table, a.block_table);
  EXPECT_EQ(wrong(blocks, {&a, &b}), "");
}

TEST(PrefixCache, SaltsKeepEqualTextsApart) {
  BlockManager blocks(8, kBlockSize);
  Sequence a = make_sequence(text(8), 1), b = make_sequence(text(8), 2);
  compute(blocks, a);
  ASSERT_TRUE(blocks.allocate(b));
  EXPECT_EQ(b.num_computed_tokens, 0);
}

TEST(PrefixCache, SaltsKeepEqualTextsApartEvenWhereHashesCollide) {
  BlockManager blocks(8, kBlockSize, [](uint64_t, std::span<const int32_t>) { return 3; });
  Sequence a = make_sequence(text(8), 1), b = make_sequence(text(8), 2);
  compute(blocks, a);
  ASSERT_TRUE(blocks.allocate(b));
  EXPECT_EQ(b.num_computed_tokens, 0);
}

TEST(PrefixCache, SequencesThatMustNotReadComputeEverything) {
  BlockManager blocks(8, kBlockSize);
  Sequence a = make_sequence(text(8)), b = make_sequence(text(8));
  compute(blocks, a);
  b.reads_prefix_cache = false;
  ASSERT_TRUE(blocks.allocate(b));
  EXPECT_EQ(b.num_computed_tokens, 0);
  EXPECT_NE(a.block_table[0], b.block_table[0]);
  EXPECT_EQ(wrong(blocks, {&a, &b}), "");
}

TEST(PrefixCache, TokensBeyondTheCacheableOnesAreNotShared) {
  BlockManager blocks(12, kBlockSize);
  Sequence a = make_sequence(text(12)), b = make_sequence(text(12)), c = make_sequence(text(12));
  a.num_cacheable_tokens = 9;
  compute(blocks, a);
  ASSERT_TRUE(blocks.allocate(b));
  EXPECT_EQ(b.num_computed_tokens, 8);
  c.num_cacheable_tokens = 0;
  ASSERT_TRUE(blocks.allocate(c));
  EXPECT_EQ(c.num_computed_tokens, 0);
  EXPECT_EQ(wrong(blocks, {&a, &b, &c}), "");
}

TEST(PrefixCache, CollidingHashesNeverServeAnotherText) {
  BlockManager blocks(16, kBlockSize, [](uint64_t, std::span<const int32_t>) { return 42; });
  Sequence a = make_sequence(text(12)), b = make_sequence(text(12, 500)),
           c = make_sequence(text(12));
  compute(blocks, a);
  compute(blocks, b);
  EXPECT_EQ(wrong(blocks, {&a, &b}), "");
  ASSERT_TRUE(blocks.allocate(c));
  EXPECT_EQ(c.block_table, a.block_table);
  EXPECT_EQ(wrong(blocks, {&a, &b, &c}), "");
}

// Second blocks with equal tokens and equal hashes differ in what stands before them.
TEST(PrefixCache, EqualTokensAfterDifferentTextsAreTold) {
  BlockManager blocks(16, kBlockSize, [](uint64_t, std::span<const int32_t>) { return 7; });
  auto first = text(8), second = text(8);
  for (int i = 0; i < kBlockSize; ++i) second[i] = 900 + i;
  Sequence a = make_sequence(first), b = make_sequence(second);
  compute(blocks, a);
  ASSERT_TRUE(blocks.allocate(b));
  EXPECT_EQ(b.num_computed_tokens, 0);
  b.num_computed_tokens = 8;
  blocks.register_computed(b, 8);
  second.push_back(1);
  Sequence c = make_sequence(second);
  ASSERT_TRUE(blocks.allocate(c));
  EXPECT_EQ(c.block_table[1], b.block_table[1]);
  EXPECT_EQ(wrong(blocks, {&a, &b, &c}), "");
}

// The parent's block is evicted and holds another text by the time its child is looked for.
TEST(PrefixCache, AChildIsNotFoundUnderAnotherTextInItsParentsBlock) {
  BlockManager blocks(3, kBlockSize, [](uint64_t, std::span<const int32_t>) { return 7; });
  Sequence a = make_sequence(text(8));
  compute(blocks, a);
  const int parent = a.block_table[0], child = a.block_table[1];
  Sequence other = make_sequence(text(4, 300));
  ASSERT_TRUE(blocks.allocate(other));  // takes the third block
  Sequence keeper = make_sequence({});
  keeper.block_table = {child};  // holds the child alone, as a longer text's sequence might
  a.block_table.pop_back();
  blocks.deallocate(a);
  Sequence b = make_sequence(text(4, 600));
  compute(blocks, b);
  ASSERT_EQ(b.block_table[0], parent);
  auto ids = text(4, 600);
  for (int i = 4; i < 8; ++i) ids.push_back(i);
  blocks.deallocate(other);
  Sequence c = make_sequence(ids);
  ASSERT_TRUE(blocks.allocate(c));
  EXPECT_EQ(c.num_computed_tokens, 4);
  EXPECT_NE(c.block_table[1], child);
}

TEST(PrefixCache, FreedTextsStayFindableUntilTheirBlocksAreNeeded) {
  BlockManager blocks(4, kBlockSize);
  Sequence a = make_sequence(text(8));
  compute(blocks, a);
  blocks.deallocate(a);
  EXPECT_EQ(blocks.num_free_blocks(), 4);
  EXPECT_EQ(blocks.num_cached_blocks(), 2);
  Sequence b = make_sequence(text(9));
  ASSERT_TRUE(blocks.allocate(b));
  EXPECT_EQ(b.num_computed_tokens, 8);
  EXPECT_EQ(wrong(blocks, {&b}), "");
}

TEST(PrefixCache, TheEndOfATextIsEvictedBeforeItsBeginning) {
  BlockManager blocks(4, kBlockSize);
  Sequence a = make_sequence(text(12));
  compute(blocks, a);
  blocks.deallocate(a);
  Sequence b = make_sequence(text(8, 700));  // the block without content, then the text's last one
  ASSERT_TRUE(blocks.allocate(b));
  blocks.deallocate(b);
  Sequence c = make_sequence(text(12));
  ASSERT_TRUE(blocks.allocate(c));
  EXPECT_EQ(c.num_computed_tokens, 8);
  EXPECT_EQ(wrong(blocks, {&c}), "");
}

TEST(PrefixCache, BlocksWithoutContentAreTakenBeforeCachedOnes) {
  BlockManager blocks(3, kBlockSize);
  Sequence a = make_sequence(text(4)), b = make_sequence(text(7, 50));
  compute(blocks, a);
  ASSERT_TRUE(blocks.allocate(b));
  blocks.deallocate(a);
  blocks.deallocate(b);  // freed later, but there is nothing in it
  Sequence c = make_sequence(text(8, 90)), d = make_sequence(text(4));
  ASSERT_TRUE(blocks.allocate(c));
  ASSERT_TRUE(blocks.allocate(d));
  EXPECT_EQ(d.num_computed_tokens, 3);
}

TEST(PrefixCache, TheLeastRecentlyUsedTextIsEvictedFirst) {
  BlockManager blocks(3, kBlockSize);
  Sequence a = make_sequence(text(4)), b = make_sequence(text(4, 50)),
           c = make_sequence(text(4, 90));
  for (Sequence* s : {&a, &b, &c}) {
    compute(blocks, *s);
    blocks.deallocate(*s);
  }
  Sequence again = make_sequence(text(4));  // a is used again: b is the oldest now
  compute(blocks, again);
  blocks.deallocate(again);
  Sequence other = make_sequence(text(3, 200));
  ASSERT_TRUE(blocks.allocate(other));
  Sequence a2 = make_sequence(text(5)), b2 = make_sequence(text(4, 50));
  ASSERT_TRUE(blocks.allocate(a2));
  EXPECT_EQ(a2.num_computed_tokens, 4);
  blocks.deallocate(a2);
  ASSERT_TRUE(blocks.allocate(b2));
  EXPECT_EQ(b2.num_computed_tokens, 0);
}

TEST(PrefixCache, ATextComputedTwiceIsKeptOnce) {
  BlockManager blocks(8, kBlockSize);
  Sequence a = make_sequence(text(10)), b = make_sequence(text(10));
  ASSERT_TRUE(blocks.allocate(a));
  ASSERT_TRUE(blocks.allocate(b));
  const auto own = b.block_table;
  a.num_computed_tokens = b.num_computed_tokens = 10;
  blocks.register_computed(a, 10);
  blocks.register_computed(b, 10);
  EXPECT_EQ(blocks.num_cached_blocks(), 2);
  EXPECT_EQ(blocks.num_used_blocks(), 4);
  EXPECT_EQ(b.block_table, (std::vector<int32_t>{a.block_table[0], a.block_table[1], own[2]}));
  EXPECT_EQ(wrong(blocks, {&a, &b}), "");
  b.token_ids.insert(b.token_ids.end(), {1, 2});
  b.num_computed_tokens = 12;
  blocks.register_computed(b, 12);  // continues a's content
  Sequence c = make_sequence(b.token_ids);
  ASSERT_TRUE(blocks.allocate(c));
  EXPECT_EQ(c.block_table, b.block_table);
  EXPECT_EQ(wrong(blocks, {&a, &b, &c}), "");
}

// The first to compute a text ends, and its blocks are wanted while the second still grows.
TEST(PrefixCache, WhatContinuesATextComputedTwiceIsFoundAfterTheFirstOneIsGone) {
  BlockManager blocks(8, kBlockSize);
  Sequence a = make_sequence(text(8)), b = make_sequence(text(8));
  ASSERT_TRUE(blocks.allocate(a));
  ASSERT_TRUE(blocks.allocate(b));
  a.num_computed_tokens = b.num_computed_tokens = 8;
  blocks.register_computed(a, 8);
  blocks.register_computed(b, 8);
  blocks.deallocate(a);
  Sequence c = make_sequence(text(20, 500));
  compute(blocks, c);
  b.token_ids.insert(b.token_ids.end(), {1, 2, 3, 4});
  ASSERT_TRUE(blocks.reserve(b, 12));
  b.num_computed_tokens = 12;
  blocks.register_computed(b, 12);
  EXPECT_EQ(wrong(blocks, {&b, &c}), "");
  Sequence again = make_sequence(b.token_ids);
  blocks.deallocate(b);
  blocks.deallocate(c);
  ASSERT_TRUE(blocks.allocate(again));
  EXPECT_EQ(again.num_computed_tokens, 11);
}

TEST(PrefixCache, HitsThatAreFreeBlocksAreNotCountedTwice) {
  BlockManager blocks(2, kBlockSize);
  Sequence a = make_sequence(text(4));
  compute(blocks, a);
  blocks.deallocate(a);
  Sequence b = make_sequence(text(9));  // one hit and two more, but only one is left
  EXPECT_FALSE(blocks.allocate(b));
  EXPECT_EQ(blocks.num_free_blocks(), 2);
  Sequence c = make_sequence(text(8));
  EXPECT_TRUE(blocks.allocate(c));
  EXPECT_EQ(wrong(blocks, {&b, &c}), "");
}

TEST(CheckIntegrity, FindsAHolderThatIsNotCounted) {
  BlockManager blocks(4, kBlockSize);
  Sequence a = make_sequence(text(4));
  ASSERT_TRUE(blocks.allocate(a));
  EXPECT_NE(wrong(blocks, {}), "");
  Sequence b = make_sequence({});
  b.block_table = a.block_table;
  EXPECT_NE(wrong(blocks, {&a, &b}), "");
}

TEST(CheckIntegrity, FindsARegisteredBlockWhoseParentIsNotHeld) {
  BlockManager blocks(4, kBlockSize);
  Sequence a = make_sequence(text(8)), other = make_sequence(text(4));
  other.reads_prefix_cache = false;
  compute(blocks, a);
  ASSERT_TRUE(blocks.allocate(other));
  std::swap(a.block_table[0], other.block_table[0]);
  EXPECT_EQ(wrong(blocks, {&a, &other}), "block 2 is registered or not, unlike its sequence");
}

TEST(CheckIntegrity, FindsASharedBlockThatHoldsAnotherText) {
  BlockManager blocks(4, kBlockSize);
  Sequence a = make_sequence(text(4));
  compute(blocks, a);
  EXPECT_EQ(wrong(blocks, {&a}), "");
  a.token_ids[2] = 99;
  EXPECT_NE(wrong(blocks, {&a}), "");
}

}  // namespace
}  // namespace nanovllm::block_tests
