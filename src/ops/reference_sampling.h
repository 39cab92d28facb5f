// The meaning of SamplingRow, written to be read rather than to be fast: one row, one thread,
// double precision, everything sorted. The backends are tested against it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/sampling.h"

namespace nanovllm {

// The logits after logit_bias, bans and penalties: what greedy takes the largest of.
std::vector<double> reference_edit_logits(const SamplingRow& row, std::span<const float> logits);

// The distribution the token is drawn from, [vocab_size]; 0 for tokens that are not kept.
// temperature must not be greedy.
std::vector<double> reference_probabilities(const SamplingRow& row, std::span<const float> logits);

// The row's result as Backend::sample defines it.
SamplingResult reference_sample(const SamplingRow& row, std::span<const float> logits);

}  // namespace nanovllm
