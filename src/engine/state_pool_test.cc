#include "engine/state_pool.h"

#include <gtest/gtest.h>

#include <deque>
#include <utility>

namespace nanovllm {
namespace {

constexpr int kChunk = 16;

Sequence sequence_of(int num_tokens) {
  return {0, 0, std::vector<int32_t>(static_cast<size_t>(num_tokens)), 1000};
}

TEST(StatePool, GivesASequenceTwoSlotsAndALogUntilThereAreNone) {
  StatePool pool({.num_slots = 4, .num_logs = 2, .chunk = kChunk});
  std::deque<Sequence> sequences;
  for (int i = 0; i < 3; ++i) sequences.emplace_back(sequence_of(10));
  const auto wrong = [&] {
    return pool.check_integrity(
        std::vector<const Sequence*>{&sequences[0], &sequences[1], &sequences[2]});
  };
  pool.allocate(sequences[0]);
  EXPECT_TRUE(pool.has_room());
  pool.allocate(sequences[1]);
  EXPECT_FALSE(pool.has_room());
  EXPECT_EQ(wrong(), "");
  EXPECT_EQ(pool.num_free_slots(), 0);
  pool.deallocate(sequences[0]);
  EXPECT_EQ(sequences[0].states, StateSlots{});
  pool.allocate(sequences[2]);
  EXPECT_EQ(wrong(), "");
  sequences[2].states.next = sequences[1].states.slot;
  EXPECT_NE(wrong(), "");
}

TEST(StatePool, AStateMovesToTheOtherSlotWhenTheNextChunkOpens) {
  StatePool pool({.num_slots = 2, .num_logs = 1, .chunk = kChunk});
  Sequence sequence = sequence_of(500);
  pool.allocate(sequence);
  const StateSlots first = sequence.states;
  EXPECT_EQ(first.len, 0);
  const auto computed = [&](int num_tokens) {
    sequence.num_computed_tokens = num_tokens;
    pool.advance(sequence);
    return sequence.states;
  };
  EXPECT_EQ(computed(1), first);
  EXPECT_EQ(computed(kChunk), first);  // whole, and not folded yet
  StateSlots second = first;
  std::swap(second.slot, second.next);
  second.len = kChunk;
  EXPECT_EQ(computed(kChunk + 1), second);
  EXPECT_EQ(computed(2 * kChunk), second);
  StateSlots later = first;
  later.len = 4 * kChunk;
  EXPECT_EQ(computed(4 * kChunk + 7), later);  // two chunks in one step: one other slot
}

TEST(StatePool, WithoutRecurrentLayersNobodyNeedsAState) {
  StatePool pool({});
  Sequence sequence = sequence_of(10);
  EXPECT_FALSE(pool.is_needed());
  pool.allocate(sequence);
  EXPECT_EQ(sequence.states, StateSlots{});
  pool.deallocate(sequence);
  EXPECT_EQ(pool.check_integrity(std::vector<const Sequence*>{&sequence}), "");
}

}  // namespace
}  // namespace nanovllm
