// What the planner of the gated delta rule (gated_delta.cc) and its kernels (delta_kernel.h) say to
// each other. Plain declarations only: kernels are compiled for instruction sets that the machine
// may lack.
#pragma once

#include <cstdint>

#include "backend/cpu/isa.h"

namespace nanovllm {

inline constexpr int kDeltaChunk = 64;  // kStateChunk

// Consecutive new rows of one sequence, all in one chunk, for one key head.
struct DeltaRows {
  // The first one's place in its chunk, and their number.
  int first = 0;
  int count = 0;
  // [conv_width - 1 + count] rows of inputs, those before the first new row too.
  const void* const* inputs = nullptr;
  int conv_width = 0;
  // [conv_width, num_channels]
  const float* conv_weight = nullptr;
  int64_t num_channels = 0;
  int64_t q_channel = 0;
  int64_t k_channel = 0;
  int key_dim = 0;
  int value_dim = 0;
  // value_dim, to whole vectors.
  int padded_dim = 0;
  float q_scale = 0;
  // [key_dim][kDeltaChunk] act, in the log.
  void* keys = nullptr;

  // Scratch of the thread (gated_delta.cc):
  // [2 count][key_dim] k and q of each row
  float* vectors = nullptr;
  // [2 count][kDeltaChunk] their products with the chunk's keys
  float* products = nullptr;
  // [count][padded_dim]
  float* v = nullptr;
  // [2 count][padded_dim] products of k and q with the state; then those of q become the results
  float* reads = nullptr;
};

// One value head of the same rows.
struct DeltaHead {
  int64_t v_channel = 0;
  // [key_dim][padded_dim] at the chunk's start; null = zeros.
  const float* state = nullptr;
  // [kDeltaChunk][padded_dim], in the log.
  float* u = nullptr;
  // [kDeltaChunk] sums of g, in the log; those of the rows are there.
  const double* gates = nullptr;
  // [count]
  const float* beta = nullptr;
  // Of the first row: the gate, and the result. act.
  const void* z = nullptr;
  void* out = nullptr;
  // Elements from row to row.
  int64_t z_stride = 0;
  int64_t out_stride = 0;
  // [value_dim]
  const float* norm = nullptr;
  float eps = 0;
};

// next = e^G state + sum over the chunk's rows of (e^(G - G_i) u_i) k_i^T for one value head, where
// G is the chunk's last sum.
struct DeltaFold {
  int key_dim = 0;
  int padded_dim = 0;
  const void* keys = nullptr;
  const float* u = nullptr;
  const double* gates = nullptr;
  // Null = zeros. May be `next`.
  const float* state = nullptr;
  float* next = nullptr;
  // [key_dim][kDeltaChunk] and [kDeltaChunk][padded_dim]
  float* wide_keys = nullptr;
  float* weighted = nullptr;
};

struct DeltaKernels {
  // Convolves, norms and stores k and q, and multiplies them with the chunk's keys.
  void (*keys)(const DeltaRows& rows);
  // After keys(): computes u, which goes into the log, and the results.
  void (*values)(const DeltaRows& rows, const DeltaHead& head);
  void (*fold)(const DeltaFold& fold);
};

// Compiled for the set.
template <Isa isa>
DeltaKernels delta_kernels(bool bfloat16);

}  // namespace nanovllm
