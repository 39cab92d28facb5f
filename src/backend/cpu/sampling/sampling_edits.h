// What a request changes in single logits before they are looked at: logit_bias, banned tokens and
// penalties, and the way back to what they were.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "ops/sampling.h"

namespace nanovllm {

// Keeps its memory from row to row.
class LogitEdits {
 public:
  // Edits logits[0, vocab_size) as ops/sampling.h says, but for the mask.
  void apply(const SamplingRow& row, float* logits, int64_t vocab_size);
  // The values before.
  void undo(float* logits);
  // Calls fn(id) for every logit that apply changed; some may come more than once.
  template <typename Fn>
  void for_each_edited(Fn&& fn) const {
    for (const auto& [id, raw] : undo_) fn(id);
  }

 private:
  void set(float* logits, int32_t id, float value);
  void apply_penalties(const SamplingRow& row, float* logits, int64_t vocab_size);

  std::vector<std::pair<int32_t, float>> undo_;  // id, value before; in the order of the edits
  std::vector<int32_t> counts_;  // [vocab_size], all zero between calls; see apply_penalties
  std::vector<int32_t> seen_;    // ids whose count is not zero
};

}  // namespace nanovllm
