// What the kernels of the gated delta rule share: the problem in raw pointers, a sequence's place
// in it, and a row's inputs until they are keys, queries and values.
#pragma once

#include "backend/cuda/device/activation.cuh"
#include "backend/cuda/device/vector.cuh"
#include "backend/cuda/recurrent/delta_layout.h"

namespace nanovllm::cuda {

// Two neighbouring elements: rows of inputs are aligned to no more.
__device__ inline float2 load_pair(const float* p) { return *reinterpret_cast<const float2*>(p); }
__device__ inline float2 load_pair(const __nv_bfloat16* p) {
  return unpack_bfloat16(*reinterpret_cast<const uint32_t*>(p));
}
__device__ inline void store_pair(float* p, float2 x) { *reinterpret_cast<float2*>(p) = x; }
__device__ inline void store_pair(__nv_bfloat16* p, float2 x) {
  *reinterpret_cast<uint32_t*>(p) = pack_bfloat16(x.x, x.y);
}

struct DeltaProblem {
  DeltaLayout layout;
  GatedDeltaParams params;
  int num_key_heads, num_value_heads;
  int key_dim, value_dim;  // not padded
  int conv_width;
  const void* in;  // act
  void* out;       // act
  char* slots;
  char* logs;
  int num_seqs;
  const int32_t *query_start_loc, *seq_lens;
  const int32_t *state_slot, *state_len, *next_slot, *log_slot;

  __device__ int group() const { return num_value_heads / num_key_heads; }
  __device__ int key_head_of(int value_head) const {
    return params.key_heads_take_turns ? value_head % num_key_heads : value_head / group();
  }
  // The j-th of those that read a key head.
  __device__ int value_head(int key_head, int j) const {
    return params.key_heads_take_turns ? j * num_key_heads + key_head : key_head * group() + j;
  }
  // Columns of `in`.
  __device__ int q_channel(int key_head) const { return key_head * key_dim; }
  __device__ int k_channel(int key_head) const { return (num_key_heads + key_head) * key_dim; }
  __device__ int v_channel(int head) const {
    return 2 * num_key_heads * key_dim + head * value_dim;
  }
  __device__ int z_column(int head) const {
    return static_cast<int>(layout.num_channels) + head * value_dim;
  }
  __device__ int b_column(int head) const { return z_column(num_value_heads) + head; }
  __device__ int a_column(int head) const { return b_column(num_value_heads) + head; }
  __device__ int64_t in_width() const { return b_column(2 * num_value_heads); }
  __device__ int64_t out_width() const { return int64_t{num_value_heads} * value_dim; }
};

// A sequence of a step: new rows first_row .. first_row + num_rows - 1, at positions `first` ..
// end - 1.
struct DeltaSequence {
  int first_row, num_rows;
  int first, end;
  int state_len;
  const char* state;  // null = zeros
  char* next;         // null: the sequence is padding
  char* log;

  __device__ DeltaSequence(const DeltaProblem& p, int seq)
      : first_row(p.query_start_loc[seq]),
        num_rows(p.query_start_loc[seq + 1] - first_row),
        first(p.seq_lens[seq] - num_rows),
        end(p.seq_lens[seq]),
        state_len(p.state_len[seq]) {
    const int32_t slot = p.next_slot[seq];
    next = slot < 0 ? nullptr : p.slots + slot * p.layout.slot;
    state = state_len > 0 ? p.slots + p.state_slot[seq] * p.layout.slot : nullptr;
    log = slot < 0 ? nullptr : p.logs + p.log_slot[seq] * p.layout.log;
  }

  // Where the last chunk with new rows begins: what the log keeps are its rows.
  __device__ int last_chunk() const { return (end - 1) / kStateChunk * kStateChunk; }
  // Whether the state at its begin is new.
  __device__ bool folds() const { return last_chunk() > state_len; }
};

// The convolution's inputs of a sequence.
template <typename T>
class DeltaInputs {
 public:
  __device__ DeltaInputs(const DeltaProblem& p, const DeltaSequence& s) : p_(p), s_(s) {}

  // Of any position from conv_width - 1 before the first new row on; null = zeros. Where a sequence
  // goes on from a slot, its log knows nothing of the text before.
  __device__ const T* row(int position) const {
    if (position < 0) return nullptr;
    if (position >= s_.first) {
      return static_cast<const T*>(p_.in) + (s_.first_row + position - s_.first) * p_.in_width();
    }
    if (is_kept(position)) {
      return reinterpret_cast<const T*>(s_.state + p_.layout.conv_rows) +
             (position - s_.first + p_.conv_width - 1) * p_.layout.num_channels;
    }
    return ring_row(position);
  }
  // Whether it comes from the slot.
  __device__ bool is_kept(int position) const {
    return position < s_.first && s_.first == s_.state_len;
  }
  __device__ T* ring_row(int position) const {
    return reinterpret_cast<T*>(s_.log + p_.layout.ring) +
           position % p_.layout.ring_rows * p_.layout.num_channels;
  }

  // SiLU of the convolution of channels c and c + 1. Loads do not wait for each other.
  __device__ float2 convolved(int position, int c) const {
    constexpr int kTaps = 4;
    float2 sum = {};
#pragma unroll 1
    for (int first = 0; first < p_.conv_width; first += kTaps) {
      float2 input[kTaps] = {}, weight[kTaps] = {};
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
        if (first + j >= p_.conv_width) continue;
        const T* const x = row(position - (p_.conv_width - 1) + first + j);
        if (x != nullptr) input[j] = load_pair(x + c);
        weight[j] = load_pair(p_.params.conv_weight + (first + j) * p_.layout.num_channels + c);
      }
#pragma unroll
      for (int j = 0; j < kTaps; ++j) {
        sum.x = fmaf(weight[j].x, input[j].x, sum.x);
        sum.y = fmaf(weight[j].y, input[j].y, sum.y);
      }
    }
    return {activate<Activation::kSilu>(sum.x), activate<Activation::kSilu>(sum.y)};
  }

  // A key or query, whose channels begin at c: scale x / sqrt(sum of its squares), padded with
  // zeros, into one row or two. By a warp.
  __device__ void write_vector(int position, int c, float scale, T* target,
                               T* also = nullptr) const {
    constexpr int kPairs = kMaxStateKeyDim / 64;  // a lane's
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float2 x[kPairs] = {};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int pair = lane + 32 * i;
      if (2 * pair >= p_.key_dim) continue;
      x[i] = convolved(position, c + 2 * pair);
      sum = fmaf(x[i].x, x[i].x, sum);
      sum = fmaf(x[i].y, x[i].y, sum);
    }
    const float factor = scale / sqrtf(warp_sum(sum) + 1e-6f);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int pair = lane + 32 * i;
      if (2 * pair >= p_.layout.key_dim) continue;
      const float2 normed = {x[i].x * factor, x[i].y * factor};
      store_pair(target + 2 * pair, normed);
      if (also != nullptr) store_pair(also + 2 * pair, normed);
    }
  }

 private:
  const DeltaProblem& p_;
  const DeltaSequence& s_;
};

// A row of the log's keys.
template <typename T>
__device__ T* log_key(const DeltaProblem& p, const DeltaSequence& s, int key_head, int position) {
  constexpr int kRing = DeltaLayout::kKeyRing;
  return reinterpret_cast<T*>(s.log) +
         (int64_t{key_head} * kRing + position % kRing) * p.layout.key_dim;
}

// What later steps need of a key head's new rows: keys, and the inputs of the convolution of it and
// of its value heads. By a block, which has read what it needs of the rings.
template <typename T>
__device__ void keep_rows(const DeltaProblem& p, const DeltaSequence& s, int key_head) {
  const DeltaInputs<T> inputs(p, s);
  const int num_warps = static_cast<int>(blockDim.x) / 32,
            warp = static_cast<int>(threadIdx.x) / 32;
  for (int position = max(s.first, s.last_chunk()) + warp; position < s.end;
       position += num_warps) {
    inputs.write_vector(position, p.k_channel(key_head), 1, log_key<T>(p, s, key_head, position));
  }
  __syncthreads();
  const int kept = p.conv_width - 1;
  const int key_pairs = p.key_dim / 2, value_pairs = p.value_dim / 2;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * key_pairs + p.group() * value_pairs;
       i += static_cast<int>(blockDim.x)) {
    const int j = i - 2 * key_pairs;
    const int c = i < key_pairs ? p.q_channel(key_head) + 2 * i
                  : j < 0
                      ? p.k_channel(key_head) + 2 * (i - key_pairs)
                      : p.v_channel(p.value_head(key_head, j / value_pairs)) + j % value_pairs * 2;
    if (s.folds()) {
      T* const rows = reinterpret_cast<T*>(s.next + p.layout.conv_rows) + c;
      for (int r = 0; r < kept; ++r) {
        const T* const x = inputs.row(s.last_chunk() - kept + r);
        store_pair(rows + r * p.layout.num_channels, x == nullptr ? float2{} : load_pair(x + c));
      }
    }
    for (int position = max(0, max(s.first - kept, s.end - p.layout.ring_rows)); position < s.end;
         ++position) {
      if (position < s.first && !inputs.is_kept(position)) continue;
      store_pair(inputs.ring_row(position) + c, load_pair(inputs.row(position) + c));
    }
  }
}

}  // namespace nanovllm::cuda
