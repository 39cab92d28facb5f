// What the planner (attention.cc) and the kernels (attention_kernel.h) say to each other. Plain
// declarations only: kernels are compiled for instruction sets that the machine may lack.
#pragma once

#include <cstdint>

#include "backend/cpu/isa.h"

namespace nanovllm {

// Rows of a task: multiples of what the kernels' register tiles hold, few enough for scores,
// accumulators and queries to stay in the second-level cache.
inline constexpr int kMaxAttentionRows = 48;
// Keys are partitioned into spans at absolute positions; a span's softmax is computed by itself and
// the spans of a row are merged in order, whoever computed them. 512 tokens make merging cost less
// than 1% and let a context of a few thousand tokens occupy many threads.
inline constexpr int kAttentionSpan = 512;

// Some rows against some spans of keys. The rows of a KV head are the pairs (new token, query head
// of its group), token by token: row r of the sequence is head r % group of new token r / group.
struct AttentionTask {
  int first_row = 0;
  int rows = 0;  // 1 .. kMaxAttentionRows
  int group = 0;
  int first_position = 0;  // of the sequence's first new token

  const void* q = nullptr;  // first new token, first head of the group
  int64_t q_stride = 0;     // elements from token to token
  void* out = nullptr;      // likewise
  int64_t out_stride = 0;

  int head_dim = 0;
  int padded_dim = 0;
  float scale = 0;
  float soft_cap = 0;            // 0 = none
  int window = 0;                // 0 = none
  const float* sinks = nullptr;  // [group], see AttentionParams; or none

  // The KV head's part of block 0, and the strides of KvLayout in bytes.
  const char* keys = nullptr;
  const char* values = nullptr;
  int64_t block_bytes = 0;
  int64_t key_tile_bytes = 0;
  int64_t value_tile_bytes = 0;
  const int32_t* block_table = nullptr;  // the sequence's
  int block_size = 0;

  // Key tiles that this thread will probably read next, or null: fetched ahead, never used here.
  const char* coming_keys = nullptr;

  // Spans of keys that are computed here, numbered from position 0.
  int first_span = 0;
  int end_span = 0;
};

namespace {  // see simd.h

// Softmax in progress of `rows` rows: running maxima and sums, and unnormalised outputs.
//   max [rows padded to 16], sum [rows padded to 16], acc [rows, padded_dim]
constexpr int64_t attention_state_floats(int rows, int padded_dim) {
  return 2 * ((rows + 15) / 16 * 16) + static_cast<int64_t>(rows) * padded_dim;
}

// A thread's memory for attend(), in floats; 64-byte aligned.
constexpr int64_t attention_scratch_floats(int padded_dim) {
  constexpr int64_t kRows = kMaxAttentionRows;
  return kRows * padded_dim                    // queries
         + kRows * (64 + 64 + 16) + 2 * kRows  // scores, weights, sums; max, scale
         + 2 * attention_state_floats(kMaxAttentionRows, padded_dim);
}

}  // namespace

struct AttentionKernels {
  // Computes the task's spans and writes the finished rows to out.
  void (*attend)(const AttentionTask& task, float* scratch);
  // Computes the task's only span and leaves its state.
  void (*attend_span)(const AttentionTask& task, float* scratch, float* state);
  // Merges the states of num_spans spans, `stride` floats apart, into the first and writes the
  // finished rows to out.
  void (*combine)(const AttentionTask& task, float* states, int64_t stride, int num_spans);
};

// For a bfloat16 or a float32 cache; compiled for the set.
template <Isa isa>
AttentionKernels attention_kernels(bool bfloat16);

}  // namespace nanovllm
