#include "backend/cpu/sampling/sampling_edits.h"

#include <limits>

namespace nanovllm {
namespace {

constexpr int32_t kInPromptOnly = -1;

}  // namespace

void LogitEdits::set(float* logits, int32_t id, float value) {
  undo_.emplace_back(id, logits[id]);
  logits[id] = value;
}

void LogitEdits::apply(const SamplingRow& row, float* logits, int64_t vocab_size) {
  undo_.clear();
  for (const auto& [id, bias] : row.logit_bias) {
    if (id >= 0 && id < vocab_size) set(logits, id, logits[id] + bias);
  }
  for (const int32_t id : row.banned_ids) {
    if (id >= 0 && id < vocab_size) set(logits, id, -std::numeric_limits<float>::infinity());
  }
  if (has_penalties(row)) apply_penalties(row, logits, vocab_size);
}

// Counting in an array of the vocabulary's size costs one visit a token and leaves no sorting to
// do; only what was counted is cleared again.
void LogitEdits::apply_penalties(const SamplingRow& row, float* logits, int64_t vocab_size) {
  counts_.resize(static_cast<size_t>(vocab_size));
  seen_.clear();
  for (const int32_t id : row.output_ids) {
    if (id >= 0 && id < vocab_size && counts_[id]++ == 0) seen_.push_back(id);
  }
  if (row.repetition_penalty != 1) {
    for (const int32_t id : row.prompt_ids) {
      if (id < 0 || id >= vocab_size || counts_[id] != 0) continue;
      counts_[id] = kInPromptOnly;
      seen_.push_back(id);
    }
  }
  for (const int32_t id : seen_) {
    float x = logits[id];
    x = x > 0 ? x / row.repetition_penalty : x * row.repetition_penalty;
    if (counts_[id] != kInPromptOnly) {
      x -= row.frequency_penalty * static_cast<float>(counts_[id]);
      x -= row.presence_penalty;
    }
    counts_[id] = 0;
    set(logits, id, x);
  }
}

void LogitEdits::undo(float* logits) {
  // Backwards: a logit that was edited twice ends with its first value.
  for (size_t i = undo_.size(); i-- > 0;) logits[undo_[i].first] = undo_[i].second;
}

}  // namespace nanovllm
