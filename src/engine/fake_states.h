// What the fake model's recurrent layers keep of the past: hashes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "runner/runner.h"

namespace nanovllm {

// Slots and logs as ForwardBatch defines them: a state is the hash of all tokens up to a chunk's
// start, a log has what each token of the chunk adds. Nothing is cleared, so that whoever is given
// another's slot or log, or one of another time, finds another hash.
class FakeStates {
 public:
  explicit FakeStates(StatePoolSize size = {})
      : size_(size),
        slots_(size.num_slots),
        logs_(static_cast<size_t>(size.num_logs) * static_cast<size_t>(size.chunk)) {}

  const StatePoolSize& size() const { return size_; }

  // Computes the last num_new_tokens of a sequence's tokens. Returns 0 if its state and log had
  // taken in those before, else another number.
  uint64_t compute(const StateSlots& s, std::span<const int32_t> token_ids, int num_new_tokens) {
    if (size_.num_slots == 0) return 0;
    NANOVLLM_CHECK(0 <= s.log && s.log < size_.num_logs && s.slot != s.next);
    const auto end = static_cast<int>(token_ids.size()), begin = end - num_new_tokens;
    NANOVLLM_CHECK(s.len % size_.chunk == 0 && s.len <= begin && begin <= s.len + size_.chunk);
    int folded = s.len;
    uint64_t state = s.len == 0 ? 0 : slots_.at(s.slot);
    for (int position = begin; position < end; ++position) {
      if (position % size_.chunk == 0 && position > folded) {
        state = slots_.at(s.next) = with_log(state, s.log, size_.chunk);
        folded = position;
      }
      row(s.log, position) = added_by(token_ids[position], position);
    }
    uint64_t expected = 0;
    for (int position = 0; position < end; ++position) {
      expected = with(expected, added_by(token_ids[position], position));
    }
    return with_log(state, s.log, end - folded) ^ expected;
  }

 private:
  static uint64_t added_by(int32_t token_id, int position) {
    return (static_cast<uint64_t>(token_id) << 32) + static_cast<uint64_t>(position) + 1;
  }
  static uint64_t with(uint64_t state, uint64_t added) {
    return (state ^ added) * 0x9e3779b97f4a7c15 + (state >> 29);
  }
  uint64_t& row(int log, int position) {
    return logs_[static_cast<size_t>(log) * size_.chunk + position % size_.chunk];
  }
  uint64_t with_log(uint64_t state, int log, int num_rows) {
    for (int i = 0; i < num_rows; ++i) state = with(state, row(log, i));
    return state;
  }

  const StatePoolSize size_;
  std::vector<uint64_t> slots_;
  std::vector<uint64_t> logs_;  // [num_logs, chunk]
};

}  // namespace nanovllm
