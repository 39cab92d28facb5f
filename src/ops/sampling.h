// What the sampler needs to know about each row of logits, and what it gives back.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ops/tensor.h"

namespace nanovllm {

// One row of logits. Order of operations, as in vLLM: raw log-probabilities are read; logit_bias;
// tokens that are banned or not allowed (-inf); repetition, frequency and presence penalties;
// temperature; min_p; top_k; top_p; draw.
//
// - A temperature below kGreedyTemperature takes the largest logit, the smallest id among equals.
// - min_p keeps what is at least min_p times as likely as the most likely token.
// - top_k keeps every token whose logit is at least the k-th largest: all the equals of the k-th.
// - top_p keeps the fewest most likely tokens whose probabilities (among what min_p and top_k left)
//   reach top_p, smaller ids first among equals, and always one.
// - The draw inverts the cumulative distribution of the kept tokens in id order at u =
//   philox_uniform(seed, position) in [0, 1) (base/philox.h).
// - Ids outside the vocabulary in prompt_ids, output_ids, logit_bias and banned_ids are ignored.
// - A row that holds a NaN or +inf, or nothing above -inf, before or after the edits, has no
//   distribution: its result has token_id -1 and no log-probabilities. Other rows are not affected.
struct SamplingRow {
  float temperature = 1;
  float top_p = 1;
  float min_p = 0;
  // 0 = all.
  int32_t top_k = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  uint64_t seed = 0;
  // Index of the token drawn, the prompt's tokens included.
  uint64_t position = 0;
  // For repetition_penalty.
  std::span<const int32_t> prompt_ids = {};
  // For all three penalties.
  std::span<const int32_t> output_ids = {};
  // >= 0: the output has one more token at its end, which the host does not know yet: it is
  // previous_ids[pending_from] on the device (see Backend::sample).
  int32_t pending_from = -1;
  std::span<const std::pair<int32_t, float>> logit_bias = {};
  // Bad words; EOS and stop tokens before min_tokens.
  std::span<const int32_t> banned_ids = {};
  // A bit mask over the whole vocabulary: a token may be drawn if bit id % 32 of word id / 32 is 1.
  // Empty = all may.
  std::span<const uint32_t> allowed = {};
  // Equal keys (not 0) mean equal words, for as long as the engine lives: a backend that has the
  // words of a key need not be sent them. 0 = always sent.
  uint64_t allowed_key = 0;
  // -1 = none, 0 = the chosen token's only; at most kMaxLogprobs.
  int32_t num_logprobs = -1;
  // >= 0: nothing is drawn; the result is this id (a prompt's, a tag's) with its log-probabilities.
  int32_t forced_id = -1;
};

// Dividing by less would overflow; it is also where vLLM starts to be greedy.
inline constexpr float kGreedyTemperature = 1e-5f;
inline bool is_greedy(const SamplingRow& row) { return row.temperature < kGreedyTemperature; }
inline bool has_penalties(const SamplingRow& row) {
  return row.repetition_penalty != 1 || row.presence_penalty != 0 || row.frequency_penalty != 0;
}

inline bool is_allowed(const SamplingRow& row, int32_t id) {
  return row.allowed.empty() || (row.allowed[id / 32] >> (id % 32) & 1) != 0;
}

// The most candidates besides the chosen token that a row may ask for, as in vLLM.
inline constexpr int kMaxLogprobs = 20;

struct LogprobEntry {
  int32_t token_id;
  float logprob;
  // 1 = most likely; smaller ids first among equals.
  int32_t rank;
};

struct SamplingResult {
  // -1 = the row has no distribution to draw from.
  int32_t token_id = -1;
  // The chosen token, then those of the num_logprobs most likely that are not it.
  std::vector<LogprobEntry> logprobs;
};

// Results that the device may still compute. The tickets of a backend must be collected in the
// order in which sample() returned them, on the thread that called it; one whose results nobody
// wants may be destroyed instead.
class SamplingTicket {
 public:
  virtual ~SamplingTicket() = default;
  // Waits for the device and fills in the results of the R rows. To be called once. Throws
  // Error on device faults.
  virtual void collect(std::span<SamplingResult> results) = 0;
};

}  // namespace nanovllm
