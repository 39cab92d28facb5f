#include "engine/state_pool.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace nanovllm {
namespace {

constexpr int kSmallBlock = 4, kSmallChunk = 8;
constexpr int kNoState = TextChain::kNone;

uint64_t hash(uint64_t parent, std::span<const int32_t> ids) {
  return parent * 31 + static_cast<uint64_t>(ids[0]) + 1;
}

Sequence sequence_of(int num_tokens, int32_t first = 0) {
  std::vector<int32_t> ids(static_cast<size_t>(num_tokens));
  std::iota(ids.begin(), ids.end(), first);
  Sequence sequence(0, 0, std::move(ids), 1 << 20);
  sequence.num_cacheable_tokens = 1 << 20;
  return sequence;
}

// A pool and a chain without blocks: the states are its only group.
struct Pool {
  explicit Pool(StatePoolSize size) : states(size, kSmallBlock, chain, 0) {}

  // Computes tokens of a sequence in one step, and adds their blocks to the chain.
  void compute(Sequence& sequence, int num_tokens) {
    sequence.num_computed_tokens = num_tokens;
    states.advance(sequence);
    register_up_to(sequence, num_tokens);
    states.keep(sequence, num_tokens);
  }
  void register_up_to(Sequence& sequence, int num_tokens) {
    PrefixChain& prefix = sequence.chain;
    while (prefix.num_blocks < num_tokens / kSmallBlock) {
      const auto ids =
          std::span(sequence.token_ids)
              .subspan(static_cast<size_t>(prefix.num_blocks) * kSmallBlock, kSmallBlock);
      const TextChain::Text text = chain.text(prefix.node, 0, ids);
      const int found = chain.find(text);
      const int node = found == TextChain::kNone ? chain.add(text) : found;
      prefix = {prefix.num_blocks + 1, node};  // held for good
    }
  }
  // The slot of the state behind so many of a sequence's tokens, which are registered.
  int kept_at(const Sequence& sequence, int num_tokens) const {
    int node = sequence.chain.node;
    for (int i = sequence.chain.num_blocks; i > num_tokens / kSmallBlock; --i) {
      node = chain.parent(node);
    }
    return chain.block(node, 0);
  }
  std::string wrong(std::vector<const Sequence*> sequences) const {
    return states.check_integrity(sequences);
  }

  TextChain chain{16, kSmallBlock, 1, hash};
  StatePool states;
};

TEST(StatePool, GivesASequenceTwoSlotsAndALogUntilThereAreNone) {
  Pool pool({.num_slots = 4, .num_logs = 2, .chunk = kSmallChunk});
  Sequence a = sequence_of(10), b = sequence_of(10), c = sequence_of(10);
  pool.states.allocate(a, {});
  EXPECT_TRUE(pool.states.has_room());
  pool.states.allocate(b, {});
  EXPECT_FALSE(pool.states.has_room());
  EXPECT_EQ(pool.wrong({&a, &b, &c}), "");
  EXPECT_EQ(pool.states.num_free_slots(), 0);
  pool.states.deallocate(a);
  EXPECT_EQ(a.states, StateSlots{});
  pool.states.allocate(c, {});
  EXPECT_EQ(pool.wrong({&a, &b, &c}), "");
  c.states.next = b.states.slot;
  EXPECT_NE(pool.wrong({&a, &b, &c}), "");
}

TEST(StatePool, AStateMovesToTheOtherSlotWhenTheNextChunkOpens) {
  Pool pool({.num_slots = 2, .num_logs = 1, .chunk = kSmallChunk});
  Sequence sequence = sequence_of(500);
  sequence.num_cacheable_tokens = 0;
  pool.states.allocate(sequence, {});
  const StateSlots first = sequence.states;
  EXPECT_EQ(first.len, 0);
  const auto computed = [&](int num_tokens) {
    pool.compute(sequence, num_tokens);
    return sequence.states;
  };
  EXPECT_EQ(computed(1), first);
  EXPECT_EQ(computed(kSmallChunk), first);  // whole, and not folded yet
  StateSlots second = first;
  std::swap(second.slot, second.next);
  second.len = kSmallChunk;
  EXPECT_EQ(computed(kSmallChunk + 1), second);
  EXPECT_EQ(computed(2 * kSmallChunk), second);
  StateSlots later = first;
  later.len = 4 * kSmallChunk;
  EXPECT_EQ(computed(4 * kSmallChunk + 7), later);  // two chunks in one step: one other slot
  EXPECT_EQ(pool.states.num_kept(), 0);
}

TEST(StatePool, KeepsTheStateAtTheLastBoundaryBelowAPromptsEnd) {
  Pool pool({.num_slots = 8, .num_logs = 2, .chunk = kSmallChunk});
  Sequence a = sequence_of(43), b = sequence_of(41);
  pool.states.allocate(a, {});
  EXPECT_EQ(pool.states.num_tokens_to_state(a, 43), 43);  // which ends less than a chunk behind it
  pool.compute(a, 43);
  EXPECT_EQ(pool.states.num_kept(), 1);
  const int slot = pool.kept_at(a, 40);
  EXPECT_EQ(slot, a.states.slot);
  pool.states.deallocate(a);
  EXPECT_EQ(pool.wrong({&a}), "");

  pool.register_up_to(b, 40);
  pool.states.allocate(b, b.chain);
  EXPECT_EQ(b.states.slot, slot);
  EXPECT_EQ(b.states.len, 40);
  EXPECT_EQ(pool.wrong({&b}), "");
  pool.compute(b, 41);
  b.token_ids.resize(60);
  pool.compute(b, 49);  // opens the next chunk: leaves the slot as it is
  EXPECT_NE(b.states.slot, slot);
  EXPECT_NE(b.states.next, slot);
  EXPECT_EQ(pool.kept_at(b, 40), slot);
  EXPECT_EQ(pool.wrong({&b}), "");
}

TEST(StatePool, AStepEndsNoMoreThanAChunkBehindAStateThatIsToBeKept) {
  // Boundaries are multiples of 12.
  Pool pool({.num_slots = 8, .num_logs = 2, .chunk = 6});
  Sequence a = sequence_of(100);  // of which the prompt's last is 96
  a.num_known_elsewhere = 36;
  pool.states.allocate(a, {});
  EXPECT_EQ(pool.states.num_tokens_to_state(a, 100), 42);
  EXPECT_EQ(pool.states.num_tokens_to_state(a, 42), 42);
  EXPECT_EQ(pool.states.num_tokens_to_state(a, 20), 20);
  pool.compute(a, 42);
  EXPECT_NE(pool.kept_at(a, 36), kNoState);
  EXPECT_EQ(pool.states.num_tokens_to_state(a, 58), 58);
  pool.compute(a, 100);
  EXPECT_NE(pool.kept_at(a, 96), kNoState);
  EXPECT_EQ(pool.states.num_kept(), 2);
  EXPECT_EQ(pool.wrong({&a}), "");
}

TEST(StatePool, ThereIsAStateInEachEightThousandTokens) {
  Pool pool({.num_slots = 8, .num_logs = 1, .chunk = kSmallChunk});
  Sequence a = sequence_of(20000);
  pool.states.allocate(a, {});
  while (a.num_computed_tokens < 20000) {
    const int left = 20000 - a.num_computed_tokens;
    pool.compute(a, a.num_computed_tokens + pool.states.num_tokens_to_state(a, left));
  }
  EXPECT_NE(pool.kept_at(a, 8192), kNoState);
  EXPECT_NE(pool.kept_at(a, 16384), kNoState);
  EXPECT_NE(pool.kept_at(a, 19992), kNoState);
  EXPECT_EQ(pool.states.num_kept(), 3);
}

TEST(StatePool, ARunningSequenceKeepsTheLastStateThatItPassed) {
  Pool pool({.num_slots = 8, .num_logs = 1, .chunk = kSmallChunk});
  Sequence a = sequence_of(3);
  pool.states.allocate(a, {});
  for (int end = 3; end < 60; ++end) {
    a.token_ids.resize(end);
    pool.compute(a, end);
    ASSERT_LE(pool.states.num_kept(), 1);
    ASSERT_EQ(pool.wrong({&a}), "");
  }
  EXPECT_NE(pool.kept_at(a, 56), kNoState);
  pool.states.deallocate(a);
  EXPECT_EQ(pool.states.num_kept(), 1);
  EXPECT_EQ(pool.wrong({&a}), "");
}

// The step that is collected left a state that the step behind it, which is in flight, has read.
TEST(StatePool, AStateIsKeptThoughTheNextStepHasOpenedAChunk) {
  Pool pool({.num_slots = 4, .num_logs = 1, .chunk = kSmallChunk});
  Sequence a = sequence_of(20);
  pool.states.allocate(a, {});
  a.num_computed_tokens = 17;
  pool.states.advance(a);
  const int slot = a.states.slot;
  a.token_ids.resize(33);
  a.num_computed_tokens = 33;
  pool.states.advance(a);
  pool.register_up_to(a, 17);
  pool.states.keep(a, 17);
  EXPECT_EQ(pool.kept_at(a, 16), slot);
  EXPECT_NE(a.states.next, slot);
  EXPECT_EQ(pool.wrong({&a}), "");
}

TEST(StatePool, KeptStatesMakeWayForThoseThatRun) {
  Pool pool({.num_slots = 4, .num_logs = 2, .chunk = kSmallChunk});
  Sequence a = sequence_of(20), b = sequence_of(20, 1000), c = sequence_of(20, 2000);
  for (Sequence* sequence : {&a, &b}) {
    pool.states.allocate(*sequence, {});
    pool.compute(*sequence, 20);
    pool.states.deallocate(*sequence);
  }
  EXPECT_EQ(pool.states.num_kept(), 2);
  pool.states.allocate(a, {4, pool.chain.parent(a.chain.node)});
  EXPECT_EQ(pool.states.num_kept(), 2);
  pool.states.allocate(c, {});  // a's state is in use
  EXPECT_EQ(pool.states.num_kept(), 1);
  EXPECT_EQ(pool.kept_at(a, 16), a.states.slot);
  EXPECT_EQ(pool.wrong({&a, &c}), "");
}

TEST(StatePool, AStateWhoseBlocksAreGoneIsForgotten) {
  Pool pool({.num_slots = 4, .num_logs = 1, .chunk = kSmallChunk});
  Sequence a = sequence_of(20);
  pool.states.allocate(a, {});
  pool.compute(a, 20);
  pool.states.forget(pool.chain.parent(a.chain.node));
  EXPECT_EQ(pool.states.num_kept(), 0);
  EXPECT_EQ(pool.kept_at(a, 16), kNoState);
  pool.states.deallocate(a);
  EXPECT_EQ(pool.wrong({&a}), "");
}

TEST(StatePool, WithoutRecurrentLayersNobodyNeedsAState) {
  Pool pool({});
  Sequence sequence = sequence_of(10);
  EXPECT_FALSE(pool.states.is_needed());
  EXPECT_TRUE(pool.states.has_room());
  pool.states.allocate(sequence, {});
  EXPECT_EQ(sequence.states, StateSlots{});
  EXPECT_EQ(pool.states.num_tokens_to_state(sequence, 10), 10);
  pool.states.deallocate(sequence);
  EXPECT_EQ(pool.wrong({&sequence}), "");
}

}  // namespace
}  // namespace nanovllm
