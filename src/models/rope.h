// Rotary position embedding (RoFormer, arXiv 2104.09864): how fast each pair of elements turns, and
// the table of cosines and sines that qk_norm_rope_store reads.
#pragma once

#include <vector>

#include "io/model_config.h"

namespace nanovllm {

struct RopeFrequencies {
  // [ModelConfig::rotated() / 2], radians per position.
  std::vector<double> inverse;
  // Multiplies cosines and sines. Not 1 for YaRN and LongRoPE.
  double magnitude = 1;
};

// Knows the scalings
// - default, linear, llama3 and yarn (arXiv 2309.00071), as transformers computes them;
// - a divisor for each frequency, as llama.cpp has them, and as LongRoPE does: it has two lists,
// and
//   max_model_len above the original context chooses the one for long contexts.
// Throws Error(kUnsupported) with the name of any other kind.
RopeFrequencies rope_frequencies(const ModelConfig& config, int max_model_len);

// RotaryTable::cos_sin, [num_positions, rotated()]: the first half of a row is cos, the second half
// sin. Computed in
// double, so that far positions are as exact as near ones.
std::vector<float> rope_table(const RopeFrequencies& frequencies, int num_positions);

}  // namespace nanovllm
