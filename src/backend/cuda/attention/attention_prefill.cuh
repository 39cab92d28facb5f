// How the kernels of prefill attention share their work. The rows of a sequence are its new tokens
// times the query heads of one KV head, token by token, so that the heads share K and V and small
// chunks fill a block.
#pragma once

#include "backend/cuda/attention/attention.cuh"

namespace nanovllm::cuda {

// Rows `row` .. of a sequence and KV head.
struct PrefillWork {
  int seq, kv_head, row, num_rows;  // num_rows: of the sequence
  int first_token;                  // row of qkv and out
  int context;                      // tokens of the sequence before its new ones

  // Of a row: of qkv and out, and among all query heads.
  struct Place {
    int64_t token;
    int head;
  };
  __device__ Place place_of(int r, int group) const {
    return {first_token + r / group, head_of(r, group)};
  }
  __device__ int head_of(int r, int group) const { return kv_head * group + r % group; }
};

__device__ inline int num_prefill_rows(const AttentionProblem& p, int seq) {
  return (p.query_start_loc[seq + 1] - p.query_start_loc[seq]) * p.group;
}

// out's elements 8 * vector .. of a query head, from `x` in shared memory.
__device__ inline void write_vector(__nv_bfloat16* out, const __nv_bfloat16* x,
                                    const AttentionProblem& p, int64_t token, int head,
                                    int vector) {
  auto* const target = reinterpret_cast<uint4*>(
      out + (token * p.params.num_heads + head) * p.kv.head_dim + vector * 8);
  if (p.gates == nullptr) {
    *target = *reinterpret_cast<const uint4*>(x);
    return;
  }
  float values[8];
  load_vector(values, x);
  p.apply_gate<__nv_bfloat16>(values, token, head, vector * 8);
  store_vector(reinterpret_cast<__nv_bfloat16*>(target), values);
}

// sums[i] = pieces of kRows rows in the problem's first i sequences, and returns how many there are
// in all. By the whole block of kThreads threads.
template <int kThreads, int kRows>
__device__ int count_prefill_pieces(int* sums, const AttentionProblem& p) {
  const int num_seqs = p.num_seqs - p.first_seq;
  prefix_sums<kThreads>(sums, num_seqs, [&](int s) {
    return (num_prefill_rows(p, p.first_seq + s) + kRows - 1) / kRows;
  });
  return sums[num_seqs];
}

// The piece `piece` of those. The last rows of a sequence see the most: they come first.
template <int kRows>
__device__ PrefillWork prefill_work(const int* sums, const AttentionProblem& p, int piece,
                                    int kv_head) {
  const int num_seqs = p.num_seqs - p.first_seq;
  const int from_behind = sums[num_seqs] - 1 - piece;
  const int s = find_segment(sums, num_seqs, from_behind);
  PrefillWork work;
  work.seq = p.first_seq + s;
  work.kv_head = kv_head;
  work.num_rows = num_prefill_rows(p, work.seq);
  work.row = (from_behind - sums[s]) * kRows;
  work.first_token = p.query_start_loc[work.seq];
  work.context = p.seq_lens[work.seq] - work.num_rows / p.group;
  return work;
}

}  // namespace nanovllm::cuda
