// What the benchmarks of sampling sample from and how: rows of 151,936 logits (Qwen3), each
// parameter alone, and several together as chat models ask for them. "trained" rows look as a
// trained model's do: few tokens count; "flat" ones are the worst case.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "ops/sampling.h"

namespace nanovllm {

inline constexpr int64_t kSampledVocabSize = 151936;

struct SamplingKind {
  const char* name;
  SamplingRow row;
};

inline const SamplingKind kSamplingKinds[] = {
    {"greedy", {.temperature = 0}},
    {"temperature", {}},
    {"top_k_50", {.top_k = 50}},
    {"top_k_5000", {.top_k = 5000}},
    {"top_p_0.9", {.top_p = 0.9f}},
    {"top_k_20_top_p_0.95", {.temperature = 0.6f, .top_p = 0.95f, .top_k = 20}},
    {"min_p_0.05", {.min_p = 0.05f}},
    {"greedy_5_logprobs", {.temperature = 0, .num_logprobs = 5}},
    {"filters_penalties_5_logprobs",
     {.temperature = 0.8f,
      .top_p = 0.9f,
      .min_p = 0.01f,
      .top_k = 50,
      .repetition_penalty = 1.1f,
      .presence_penalty = 0.1f,
      .frequency_penalty = 0.1f,
      .num_logprobs = 5}}};

inline std::vector<float> sampling_logits(int64_t rows, bool trained) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, trained ? 2.5f : 1);
  std::vector<float> logits(static_cast<size_t>(rows * kSampledVocabSize));
  for (float& x : logits) x = normal(rng);
  for (int64_t r = 0; trained && r < rows; ++r) {
    for (int i = 0; i < 30; ++i) logits[r * kSampledVocabSize + rng() % kSampledVocabSize] += 12;
  }
  return logits;
}

// The tokens that penalties count.
inline std::vector<int32_t> sampling_output_ids() {
  constexpr int kCount = 300;
  std::mt19937 rng(2);
  std::vector<int32_t> ids(kCount);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng() % kSampledVocabSize);
  return ids;
}

// `output_ids` stay the caller's.
inline std::vector<SamplingRow> sampling_rows(const SamplingKind& kind, int64_t num_rows,
                                              const std::vector<int32_t>& output_ids) {
  SamplingRow row = kind.row;
  row.output_ids = output_ids;
  return std::vector<SamplingRow>(static_cast<size_t>(num_rows), row);
}

// Rows of which each has a mask of allowed tokens for itself: most are, as inside a string of JSON,
// or few, as between its members.
struct MaskedSamplingKind {
  const char* name;
  double share_allowed;
  SamplingRow row;
};

inline const MaskedSamplingKind kMaskedSamplingKinds[] = {
    {"most_allowed", 0.95, {}},
    {"few_allowed", 0.001, {}},
    {"few_allowed_greedy", 0.001, {.temperature = 0}},
    {"most_allowed_top_k_20_top_p_0.95", 0.95, {.temperature = 0.6f, .top_p = 0.95f, .top_k = 20}}};

inline std::vector<std::vector<uint32_t>> sampling_masks(double share_allowed, int64_t num_rows) {
  std::mt19937 rng(3);
  std::bernoulli_distribution is_allowed(share_allowed);
  std::vector<std::vector<uint32_t>> masks(static_cast<size_t>(num_rows));
  for (std::vector<uint32_t>& mask : masks) {
    mask.resize((kSampledVocabSize + 31) / 32);
    for (int64_t id = 0; id < kSampledVocabSize; ++id) {
      if (is_allowed(rng)) mask[id / 32] |= 1u << (id % 32);
    }
  }
  return masks;
}

// `masks` stay the caller's.
inline std::vector<SamplingRow> masked_sampling_rows(
    const MaskedSamplingKind& kind, const std::vector<std::vector<uint32_t>>& masks) {
  std::vector<SamplingRow> rows(masks.size(), kind.row);
  for (size_t r = 0; r < masks.size(); ++r) rows[r].allowed = masks[r];
  return rows;
}

}  // namespace nanovllm
