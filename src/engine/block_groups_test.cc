// Groups of layers with block tables of their own; and random texts in random groups.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "engine/block_manager.h"
#include "engine/block_manager_testing.h"
#include "engine/fake_states.h"

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

// It takes the blocks that it has left behind again, and those of others stay.
TEST(CacheGroups, ATextIsWrittenOverWhatItsWindowHasLeft) {
  BlockManager blocks(24, kBlockSize, kAllAndFive);
  Sequence a = make_sequence(text(16)), b = make_sequence(text(8, 500));
  ASSERT_TRUE(blocks.allocate(a));
  compute_up_to(blocks, a, 16);
  blocks.deallocate(a);
  ASSERT_TRUE(blocks.allocate(b));
  compute_up_to(blocks, b, 8);
  for (int end = 9; end <= 44; ++end) {  // 11 blocks of the text, and 3 of the window
    b.token_ids.push_back(end);
    compute_up_to(blocks, b, end);
    EXPECT_EQ(wrong(blocks, {&b}), "");
  }
  ASSERT_TRUE(blocks.allocate(a));
  EXPECT_EQ(a.num_computed_tokens, 15);
}

// Of 24 blocks, ten are the text's and eight those that its windows have left, of which the first
// two are seen at a beginning that another has.
TEST(CacheGroups, WhatAWindowSawWhereTextsPartStays) {
  for (const bool parts : {false, true}) {
    BlockManager blocks(24, kBlockSize, kAllAndFive);
    Sequence a = make_sequence(text(41));
    a.num_known_elsewhere = 0;
    ASSERT_TRUE(blocks.allocate(a));
    if (parts) a.num_known_elsewhere = 8;
    for (int end = kBlockSize; end <= 40; end += kBlockSize) compute_up_to(blocks, a, end);
    blocks.deallocate(a);
    Sequence other = make_sequence(text(4 * 10, 500));
    other.num_cacheable_tokens = 0;
    ASSERT_TRUE(blocks.allocate(other));  // takes ten blocks
    Sequence b = make_sequence(text(11));
    blocks.deallocate(other);
    ASSERT_TRUE(blocks.allocate(b));
    EXPECT_EQ(b.num_computed_tokens, parts ? 8 : 0);
  }
}

// Of 26 blocks, one is what a window saw at the end of a text from which another goes on.
TEST(CacheGroups, WhatAWindowSawWhereOneTextAloneGoesOnIsTakenFirst) {
  for (const bool alone : {true, false}) {
    BlockManager blocks(26, kBlockSize, kAllAndFive);
    const auto compute = [&](const Ids& ids) {
      Sequence sequence = make_sequence(ids);
      ASSERT_TRUE(blocks.allocate(sequence));
      const int length = static_cast<int>(ids.size());
      while (sequence.num_settled_tokens < length) {
        compute_up_to(blocks, sequence, std::min(length, sequence.num_settled_tokens + kBlockSize));
      }
      EXPECT_EQ(wrong(blocks, {&sequence}), "");
      blocks.deallocate(sequence);
    };
    Ids with_other_end = text(16);
    with_other_end.insert(with_other_end.end(), 5, 700);
    compute(text(16));
    if (!alone) compute(with_other_end);
    compute(text(40));
    Sequence other = make_sequence(text(4 * 10, 500));
    other.num_cacheable_tokens = 0;
    ASSERT_TRUE(blocks.allocate(other));
    blocks.deallocate(other);
    Sequence third = make_sequence(text(17));
    ASSERT_TRUE(blocks.allocate(third));
    EXPECT_EQ(third.num_computed_tokens, alone ? 12 : 16);
  }
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

// Random texts over a tiny alphabet, so that beginnings are often equal, computed in steps of which
// up to two are in flight, against the rule that a block is shared exactly when everything up to
// its end is equal; and against hashes where layers are recurrent.
using Setup = std::tuple<bool, std::vector<int>, int>;  // whether hashes collide, windows, chunk

class BlockManagerProperty : public ::testing::TestWithParam<Setup> {
 protected:
  static constexpr int kTokens = 2, kMostLive = 8;
  struct Live {
    std::unique_ptr<Sequence> sequence;
    std::deque<int> ends = {};  // of its steps in flight
  };

  int pick(int n) { return static_cast<int>(rng_() % static_cast<unsigned>(n)); }
  static uint64_t weak_hash(uint64_t, std::span<const int32_t> ids) { return ids[0]; }
  // Rarely more than those of all sequences.
  StatePoolSize random_states() {
    const int chunk = std::get<2>(GetParam());
    if (chunk == 0) return {};
    const int num_logs = 2 + pick(kMostLive);
    return {.num_slots = 2 * num_logs + pick(8), .num_logs = num_logs, .chunk = chunk};
  }

  void add(int round) {
    std::vector<int32_t> ids(1 + pick(12));
    for (int32_t& id : ids) id = pick(2);
    auto sequence = std::make_unique<Sequence>(round, 0, ids, kMaxNumTokens);
    sequence->num_cacheable_tokens = pick(8) == 0 ? pick(12) : kMaxNumTokens;
    Live one{std::move(sequence)};
    if (let_in(one)) live_.push_back(std::move(one));
  }
  bool let_in(Live& one) {
    if (!blocks_.allocate(*one.sequence)) return false;
    num_hits_ += one.sequence->num_computed_tokens > 1 ? 1 : 0;
    return true;
  }
  void give_up(Live& one) {
    blocks_.deallocate(*one.sequence);
    one.ends.clear();
  }

  // A step of some of the tokens, as many as there are blocks for.
  void submit(Live& one) {
    Sequence& sequence = *one.sequence;
    const int before = sequence.num_computed_tokens;
    const int most = std::min(sequence.num_tokens() - before, 1 + pick(4));
    const int asked = before + blocks_.num_tokens_to_state(sequence, most);
    const int end = std::max(before, blocks_.num_tokens_with_room(sequence, asked));
    ASSERT_TRUE(blocks_.reserve(sequence, end));
    if (end == before) return;
    const auto text = std::span(sequence.token_ids).first(end);
    ASSERT_EQ(model_.compute(sequence.states, text, end - before), 0U) << "another text's state";
    sequence.num_computed_tokens = end;
    blocks_.advance(sequence);
    one.ends.push_back(end);
  }
  void collect(Live& one) {
    Sequence& sequence = *one.sequence;
    blocks_.register_computed(sequence, one.ends.front());
    one.ends.pop_front();
    if (one.ends.empty()) check_windows(sequence);
    if (sequence.num_computed_tokens == sequence.num_tokens() &&
        blocks_.reserve(sequence, sequence.num_tokens() + 1)) {
      sequence.token_ids.push_back(pick(2));
    }
  }

  void check_windows(const Sequence& sequence) {
    for (size_t group = 0; group < windows_.size(); ++group) {
      if (windows_[group] == 0) continue;
      int held = 0;
      for (size_t i = group; i < sequence.block_table.size(); i += windows_.size()) {
        held += sequence.block_table[i] >= 0 ? 1 : 0;
      }
      ASSERT_LE(held, (windows_[group] + 1) / kTokens + 1);
    }
  }
  void check_books() {
    std::vector<const Sequence*> holders;
    for (const Live& one : live_) holders.push_back(one.sequence.get());
    for (const Live& one : preempted_) holders.push_back(one.sequence.get());
    ASSERT_EQ(blocks_.check_integrity(holders), "");
  }
  void check_shared_blocks() {
    for (const Live& one : live_) {
      for (const Live& other : live_) {
        const Sequence &a = *one.sequence, &b = *other.sequence;
        for (size_t i = 0; i < std::min(a.block_table.size(), b.block_table.size()); ++i) {
          if (&a == &b || a.block_table[i] < 0 || a.block_table[i] != b.block_table[i]) continue;
          const auto end = static_cast<ptrdiff_t>(i / windows_.size() * kTokens + kTokens);
          ASSERT_TRUE(
              std::equal(a.token_ids.begin(), a.token_ids.begin() + end, b.token_ids.begin()));
        }
      }
    }
  }

  std::mt19937 rng_{17};
  const std::vector<int> windows_ = std::get<1>(GetParam());
  const int num_blocks_ = 24 * static_cast<int>(windows_.size());
  const StatePoolSize states_ = random_states();
  BlockManager blocks_ = std::get<0>(GetParam())
                             ? BlockManager(num_blocks_, kTokens, weak_hash, windows_, states_)
                             : BlockManager(num_blocks_, kTokens, windows_, states_);
  FakeStates model_{states_};
  std::vector<Live> live_, preempted_;
  int num_hits_ = 0;
};

TEST_P(BlockManagerProperty, BooksBalanceAndSharedBlocksHoldEqualTexts) {
  int num_kept = 0;
  for (int round = 0; round < 4000 && !HasFatalFailure(); ++round) {
    SCOPED_TRACE(round);
    if (!preempted_.empty() && pick(2) == 0 && let_in(preempted_.back())) {
      live_.push_back(std::move(preempted_.back()));
      preempted_.pop_back();
    }
    if (pick(3) > 0) add(round);
    for (Live& one : live_) {
      if (one.ends.size() < 2 && pick(2) == 0) submit(one);
    }
    for (Live& one : live_) {
      if (one.ends.size() == 2 || (!one.ends.empty() && pick(2) == 0)) collect(one);
    }
    if (!live_.empty() && pick(3) == 0) {
      const auto victim = live_.begin() + pick(static_cast<int>(live_.size()));
      give_up(*victim);
      if (pick(2) == 0) preempted_.push_back(std::move(*victim));
      live_.erase(victim);
    }
    num_kept += blocks_.states().num_kept();
    check_books();
    check_shared_blocks();
  }
  EXPECT_GT(num_hits_, states_.chunk > 0 ? 20 : 100);  // where a state was kept, too
  EXPECT_EQ(num_kept > 1000, states_.chunk > 0);
  for (Live& one : live_) give_up(one);
  live_.clear();
  EXPECT_EQ(blocks_.num_free_blocks(), num_blocks_);
  check_books();
}

INSTANTIATE_TEST_SUITE_P(HashFunctions, BlockManagerProperty,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(std::vector{0}, std::vector{0, 3},
                                                              std::vector{5},
                                                              std::vector{1, 0, 4, 4},
                                                              std::vector{1}, std::vector{2, 7}),
                                            ::testing::Values(0, 2, 3)),
                         [](const auto& test) {
                           std::string name = std::get<0>(test.param) ? "Colliding" : "XxHash";
                           for (const int window : std::get<1>(test.param))
                             name += "_" + std::to_string(window);
                           if (std::get<2>(test.param) > 0)
                             name += "_chunk_" + std::to_string(std::get<2>(test.param));
                           return name;
                         });

}  // namespace
}  // namespace nanovllm::block_tests
