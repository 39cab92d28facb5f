// The vectorised passes over a row of logits that sampling is made of.
//
// A row is looked at in blocks of kSampleBlock logits. Its 600 KB (150,000 tokens) are read from
// memory once, for the largest logit of each block; later passes find the row in the L2 cache and
// skip the blocks whose largest logit says that nothing in them counts.
#pragma once

#include <cstdint>

#include "backend/cpu/isa.h"

namespace nanovllm {

inline constexpr int kSampleBlock = 128;

constexpr int64_t num_sample_blocks(int64_t n) { return (n + kSampleBlock - 1) / kSampleBlock; }

// The unnormalised probability of logit x: exp((x - top) * scale) where x >= threshold, else 0.
// `top` is at least every logit, `scale` is 1 / temperature.
struct WeightParams {
  float top;
  float scale;
  float threshold;
};

// Each block is computed by itself, so nothing depends on how a row is cut among threads.
struct SamplingKernels {
  // max[b] = largest of block b of x[0, n); NaN when the block holds one.
  void (*block_max)(const float* x, int64_t n, float* max);
  // mass[b] = sum of the weights of block b; blocks with max[b] < threshold are not read.
  void (*block_mass)(const float* x, int64_t n, const float* max, WeightParams params, float* mass);
  // weight[i] of x[0, n), n <= kSampleBlock; weight has room for kSampleBlock.
  void (*weights)(const float* x, int n, WeightParams params, float* weight);
  // bin[i] = min(last_bin, floor((top - x[i]) * bins_per_unit)) of x[0, n), n <= kSampleBlock; bin
  // has room for kSampleBlock.
  void (*bins)(const float* x, int n, float top, float bins_per_unit, int last_bin, int32_t* bin);
  // How many of x[0, n) are at least `value`.
  int64_t (*count_at_least)(const float* x, int64_t n, float value);
  // x[i] = -inf where bit i % 32 of word i / 32 is 0, and max as block_max() has it then: it holds
  // the largest of each block before. Bits behind n don't count.
  void (*mask)(float* x, int64_t n, const uint32_t* words, float* max);
};

SamplingKernels sampling_kernels(Isa isa);
// Compiled for the set.
template <Isa isa>
SamplingKernels sampling_kernels();

}  // namespace nanovllm
