// What the kernels of the gated delta rule share: the problem in raw pointers, a sequence's place
// in it, and what a row's inputs become.
#pragma once

#include <type_traits>

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
  DeltaRowLayout row_layout;
  GatedDeltaParams params;
  int num_key_heads, num_value_heads;
  int key_dim, value_dim;  // not padded
  int conv_width;
  const void* in;  // act
  void* out;       // act
  char* slots;
  char* logs;
  char* rows;  // prepared
  int num_tokens, num_seqs, num_decodes, max_query_len;
  bool takes_chunks;  // long sequences are a kernel's own that goes chunk by chunk
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

  // Of prepared rows.
  template <typename T>
  __device__ T* key(int row, int key_head) const {
    return reinterpret_cast<T*>(rows + row * row_layout.bytes) + 2 * key_head * layout.key_dim;
  }
  template <typename T>
  __device__ T* query(int row, int key_head) const {
    return key<T>(row, key_head) + layout.key_dim;
  }
  __device__ float* value(int row, int head) const {
    return reinterpret_cast<float*>(rows + row * row_layout.bytes + row_layout.values) +
           head * layout.value_dim;
  }
  __device__ DeltaGate* gate(int row, int head) const {
    return reinterpret_cast<DeltaGate*>(rows + row * row_layout.bytes + row_layout.gates) + head;
  }
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

  // Its blocks may read of its log what others write of it, in any order.
  __device__ bool is_short() const { return num_rows <= kShortDeltaRows; }
  // Of `in`, `out` and of prepared ones.
  __device__ int row(int position) const { return first_row + position - first; }
  // Where the last chunk with new rows begins: what the log keeps are its rows.
  __device__ int last_chunk() const { return (end - 1) / kStateChunk * kStateChunk; }
  // Whether the state at its begin is new.
  __device__ bool folds() const { return last_chunk() > state_len; }
};

// The sequence of a row. As many as there are rows of padding have a row each.
__device__ inline int sequence_of_row(const DeltaProblem& p, int row) {
  if (p.max_query_len == 1) return row;
  int begin = 0, end = p.num_seqs;  // it is one of these
  while (end - begin > 1) {
    const int middle = (begin + end) / 2;
    (p.query_start_loc[middle] <= row ? begin : end) = middle;
  }
  return begin;
}

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
      return static_cast<const T*>(p_.in) + s_.row(position) * p_.in_width();
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

// Rows of a head's part of the log.
__device__ inline float* log_value(const DeltaProblem& p, const DeltaSequence& s, int head,
                                   int row) {
  return reinterpret_cast<float*>(s.log + p.layout.values) +
         (int64_t{head} * kStateChunk + row) * p.layout.value_dim;
}
__device__ inline double* log_gate(const DeltaProblem& p, const DeltaSequence& s, int head,
                                   int row) {
  return reinterpret_cast<double*>(s.log + p.layout.gates) + head * kStateChunk + row;
}

// A sum of g in two floats, exact enough for differences of such.
struct SplitSum {
  float high, low;

  __device__ static SplitSum of(double sum) {
    const auto high = static_cast<float>(sum);
    return {high, static_cast<float>(sum - high)};
  }
};
// e^(sum at row t - sum at row i).
template <typename T>
__device__ float decay_between(SplitSum i, SplitSum t) {
  const float g = (t.high - i.high) + (t.low - i.low);
  return std::is_same_v<T, float> ? expf(g) : __expf(g);
}

// Of the convolution's inputs, `dim` channels from c on, what later steps need. By a warp.
template <typename T>
__device__ void keep_inputs(const DeltaProblem& p, const DeltaSequence& s, int c, int dim) {
  const DeltaInputs<T> inputs(p, s);
  const int kept = p.conv_width - 1;
  const int first = max(0, max(s.first - kept, s.end - p.layout.ring_rows));
  for (int end = c + dim, i = c + static_cast<int>(threadIdx.x) % 32 * 2; i < end; i += 64) {
    if (s.folds()) {
      T* const rows = reinterpret_cast<T*>(s.next + p.layout.conv_rows) + i;
#pragma unroll 4
      for (int r = 0; r < kept; ++r) {
        const T* const x = inputs.row(s.last_chunk() - kept + r);
        store_pair(rows + r * p.layout.num_channels, x == nullptr ? float2{} : load_pair(x + i));
      }
    }
#pragma unroll 4
    for (int position = first; position < s.end; ++position) {
      if (position < s.first && !inputs.is_kept(position)) continue;
      store_pair(inputs.ring_row(position) + i, load_pair(inputs.row(position) + i));
    }
  }
}

// The norm and gate of what rows read for a value head. By a warp.
template <typename T>
class RowWriter {
 public:
  __device__ RowWriter(const DeltaProblem& p, int head) : p_(p), head_(head) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      norm_[i] = has(i) ? load_pair(p.params.out_norm + column(i)) : float2{};
    }
  }

  __device__ void write(int row, const float* read) const { write<1>(row, 1, read, 0); }

  // kRows at most from `row` on, whose `read` are so far from each other.
  template <int kRows>
  __device__ void write(int row, int num_rows, const float* read, int64_t stride) const {
    float2 o[kRows][kPairs] = {}, gate[kRows][kPairs] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int at = min(r, num_rows - 1);
      const T* const z =
          static_cast<const T*>(p_.in) + (row + at) * p_.in_width() + p_.z_column(head_);
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        if (!has(i)) continue;
        o[r][i] = load_pair(read + at * stride + column(i));
        gate[r][i] = load_pair(z + column(i));
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < num_rows) store_row(row + r, o[r], gate[r]);
    }
  }

 private:
  static constexpr int kPairs = kMaxStateValueDim / 64;  // a lane's

  __device__ static int column(int i) { return static_cast<int>(threadIdx.x) % 32 * 2 + 64 * i; }
  __device__ bool has(int i) const { return column(i) < p_.value_dim; }

  __device__ void store_row(int row, const float2 (&o)[kPairs],
                            const float2 (&gate)[kPairs]) const {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      squares = fmaf(o[i].x, o[i].x, squares);
      squares = fmaf(o[i].y, o[i].y, squares);
    }
    const float mean = warp_sum(squares) / static_cast<float>(p_.value_dim);
    const float factor = 1 / sqrtf(mean + p_.params.eps);
    T* const out = static_cast<T*>(p_.out) + row * p_.out_width() + head_ * p_.value_dim;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (!has(i)) continue;
      store_pair(out + column(i),
                 {o[i].x * factor * norm_[i].x * activate<Activation::kSilu>(gate[i].x),
                  o[i].y * factor * norm_[i].y * activate<Activation::kSilu>(gate[i].y)});
    }
  }

  const DeltaProblem& p_;
  const int head_;
  float2 norm_[kPairs];
};

// Zeros, for a row of padding. By a warp.
template <typename T>
__device__ void clear_row(const DeltaProblem& p, int row, int head) {
  T* const out = static_cast<T*>(p.out) + row * p.out_width() + head * p.value_dim;
  for (int c = static_cast<int>(threadIdx.x) % 32 * 2; c < p.value_dim; c += 64) {
    store_pair(out + c, {});
  }
}

// Sequences with many rows stand behind: their blocks come first.
__device__ inline int sequence_of_block(const DeltaProblem& p, int blocks_a_sequence) {
  return p.num_seqs - 1 - static_cast<int>(blockIdx.x) / blocks_a_sequence;
}

// Before and behind what goes over states: see delta_rows.cu.
void launch_prepare_rows(cudaStream_t stream, const DeltaProblem& problem, DType act);
void launch_finish_rows(cudaStream_t stream, const DeltaProblem& problem, DType act);
// Of long sequences; see delta_chunks.cu.
void launch_delta_chunks(cudaStream_t stream, const DeltaProblem& problem, int slice_values,
                         size_t shared_bytes);

}  // namespace nanovllm::cuda
