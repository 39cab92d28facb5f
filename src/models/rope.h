// Rotary position embedding (RoFormer, arXiv 2104.09864): how fast each pair of elements turns, and
// the table of cosines and sines that qk_norm_rope_store reads.
#pragma once

#include <vector>

#include "io/model_config.h"

namespace nanovllm {

struct RopeFrequencies {
  std::vector<double> inverse;  // [rotated() / 2], radians a position
  double magnitude = 1;         // multiplies cosines and sines; other than 1 for YaRN
};

// For default, linear, llama3 and yarn (arXiv 2309.00071) scaling, as transformers computes them,
// and divisors as llama.cpp does, and as both do for LongRoPE. max_model_len chooses between those
// for short and long contexts. Throws Error(kUnsupported) naming any other kind.
RopeFrequencies rope_frequencies(const ModelConfig& config, int max_model_len);

// [num_positions, rotated()]: the first half of a row is cos, the second half sin. Computed in
// double, so that far positions are as exact as near ones.
std::vector<float> rope_table(const RopeFrequencies& frequencies, int num_positions);

}  // namespace nanovllm
