// What the attention kernels share: the problem in raw pointers, and how a block finds its share of
// a ragged batch. The kernels: attention.cu (any shape, scalar), attention_decode.cu (one query
// token a sequence), attention_pieces.cu (a few of them), attention_prefill.cu and, on Hopper,
// attention_prefill_wgmma.cu (chunks).
#pragma once

#include <cstdint>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/device/device.cuh"
#include "backend/cuda/device/kv_layout.cuh"
#include "backend/cuda/device/rope.cuh"
#include "backend/cuda/device/vector.cuh"

namespace nanovllm::cuda {

// Scores are kept in units of log2, so that softmax needs exp2 only.
constexpr float kLog2E = 1.4426950408889634f;

struct AttentionProblem {
  KvView kv;
  AttentionParams params;
  int group;  // query heads of one KV head
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  const int32_t* block_table;
  int block_table_stride;
  int first_seq, num_seqs;  // the kernel's sequences are first_seq .. num_seqs - 1
  int64_t row_width;        // elements of a row of qkv
  const void* gates;        // the first row's part behind v, act; or null

  // x, elements i .. of a query head's result, times the sigmoid of its gate, if there is one.
  template <typename T, int n>
  __device__ void apply_gate(float (&x)[n], int64_t token, int head, int i) const {
    if (gates == nullptr) return;
    float gate[n];
    load_vector(gate, static_cast<const T*>(gates) + token * row_width + head * kv.head_dim + i);
#pragma unroll
    for (int e = 0; e < n; ++e) x[e] /= 1.f + expf(-gate[e]);
  }

  // First position that a query at `position` sees.
  __device__ int first_visible(int position) const {
    return params.window > 0 ? max(0, position - params.window + 1) : 0;
  }
  // What a query head's sink adds, once, to the sum of its weights of exp2(score - largest).
  __device__ float sink_weight(int head, float largest) const {
    return params.sinks == nullptr ? 0.f : exp2f(params.sinks[head] * kLog2E - largest);
  }
};

// A launch, but for what is the kernel's own.
template <typename T>
struct AttentionCall {
  cudaStream_t stream;
  T* out;
  const T* qkv;
  T* cache;
  AttentionProblem p;
  const AttentionWorkspace& workspace;
};
using Bf16Attention = AttentionCall<__nv_bfloat16>;

// sums[i] = count(0) + ... + count(i - 1) for i in 0..n, in shared memory, by the whole block
// (kThreads threads). Ends with a barrier.
template <int kThreads, typename Count>
__device__ void prefix_sums(int* sums, int n, Count&& count) {
  __shared__ int warp_sums[kThreads / 32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int each = (n + kThreads - 1) / kThreads;
  const int begin = min(n, static_cast<int>(threadIdx.x) * each), end = min(n, begin + each);
  int sum = 0;
#pragma unroll 1
  for (int i = begin; i < end; ++i) {
    sums[i] = sum;
    sum += count(i);
  }
  int before = warp_prefix_sum(sum, lane);  // then of the lanes before this one
  if (lane == 31) warp_sums[warp] = before;
  before -= sum;
  __syncthreads();
#pragma unroll 1
  for (int w = 0; w < warp; ++w) before += warp_sums[w];
#pragma unroll 1
  for (int i = begin; i < end; ++i) sums[i] += before;
  if (threadIdx.x == kThreads - 1) sums[n] = before + sum;
  __syncthreads();
}

// The i with sums[i] <= x < sums[i + 1], for x < sums[n].
__device__ inline int find_segment(const int* sums, int n, int x) {
  int low = 0, high = n - 1;
#pragma unroll 1
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (sums[middle] <= x) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// As attention_plan.h has planned them.
void launch_decode_attention(const Bf16Attention& call, const DecodeChoice& choice);
void launch_store_and_decode_attention(const Bf16Attention& call, const Rope& rope,
                                       const int32_t* slots, const DecodeChoice& choice);
// Of the problem's first sequences.
void launch_piece_attention(const Bf16Attention& call, const PiecesChoice& choice);
// Of the problem's sequences, which have so many new tokens.
void launch_prefill_attention(const Bf16Attention& call, int num_tokens,
                              const PrefillChoice& choice);
// num_cache_blocks: all that the cache has.
void launch_wgmma_prefill_attention(const Bf16Attention& call, int64_t num_cache_blocks,
                                    const PrefillChoice& choice);

}  // namespace nanovllm::cuda
