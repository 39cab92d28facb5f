// A row by itself: what is computed of it before states and other rows come in, and behind.
#include <algorithm>
#include <type_traits>

#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/recurrent/delta_rows.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kTileRows = 16;   // of a warp, where there are many
constexpr int kMaxVectors = 4;  // of a block that prepares rows
constexpr int kFinishWarps = 8;
constexpr int kManyAhead = 4;  // rows of a tile that are read at once

// A vector of a row: the key head's key and query, then the values of its value heads.
struct VectorPlace {
  int index, head, channel, dim;

  __device__ VectorPlace(const DeltaProblem& p, int key_head, int vector)
      : index(vector),
        head(vector < 2 ? 0 : p.value_head(key_head, vector - 2)),
        channel(vector == 0   ? p.k_channel(key_head)
                : vector == 1 ? p.q_channel(key_head)
                              : p.v_channel(head)),
        dim(vector < 2 ? p.key_dim : p.value_dim) {}
};

// SiLU of the convolution of a vector's channels, of one row after another. A lane has kPairs pairs
// of neighbouring channels.
template <typename T, int kPairs>
class Convolution {
 public:
  __device__ Convolution(const DeltaProblem& p, const VectorPlace& place)
      : p_(p), channel_(place.channel + first_pair()), dim_(place.dim) {
    const int absent = kMaxConvWidth - p.conv_width;
#pragma unroll
    for (int tap = 0; tap < kMaxConvWidth; ++tap) {
      const float* const weights =
          p.params.conv_weight + (tap - absent) * p.layout.num_channels + channel_;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        weights_[tap][i] = has(i) && tap >= absent ? load_pair(weights + 64 * i) : float2{};
      }
    }
  }

  __device__ static int first_pair() { return static_cast<int>(threadIdx.x) % 32 * 2; }

  // Before the row at a position.
  __device__ void begin(const DeltaInputs<T>& inputs, int position) {
#pragma unroll
    for (int j = 0; j < kMaxConvWidth - 1; ++j) {
      const int distance = kMaxConvWidth - 1 - j;
      const T* const row = distance < p_.conv_width ? inputs.row(position - distance) : nullptr;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        window_[j][i] = has(i) && row != nullptr ? load_pair(row + channel_ + 64 * i) : float2{};
      }
    }
  }

  // Of kRows rows of `in`, or of fewer up to `last`: loads do not wait for each other.
  template <int kRows>
  __device__ void read(int row, int last, float2 (&x)[kRows][kPairs]) const {
    using Pair = std::conditional_t<std::is_same_v<T, float>, float2, uint32_t>;
    Pair pairs[kRows][kPairs];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const T* const from =
          static_cast<const T*>(p_.in) + min(row + r, last) * p_.in_width() + channel_;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        pairs[r][i] = has(i) ? *reinterpret_cast<const Pair*>(from + 64 * i) : Pair{};
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        x[r][i] = load_pair(reinterpret_cast<const T*>(&pairs[r][i]));
      }
    }
  }

  // `x`: what was read of the next row; becomes its result.
  __device__ void convolve(float2 (&x)[kPairs]) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      float2 sum = {};
#pragma unroll
      for (int tap = 0; tap < kMaxConvWidth; ++tap) {
        const float2 input = tap + 1 < kMaxConvWidth ? window_[tap % (kMaxConvWidth - 1)][i] : x[i];
        sum.x = fmaf(weights_[tap][i].x, input.x, sum.x);
        sum.y = fmaf(weights_[tap][i].y, input.y, sum.y);
      }
#pragma unroll
      for (int j = 0; j + 2 < kMaxConvWidth; ++j) window_[j][i] = window_[j + 1][i];
      window_[kMaxConvWidth - 2][i] = x[i];
      x[i] = {activate<Activation::kSilu>(sum.x), activate<Activation::kSilu>(sum.y)};
    }
  }

 private:
  __device__ bool has(int i) const { return first_pair() + 64 * i < dim_; }

  const DeltaProblem& p_;
  const int channel_, dim_;
  float2 weights_[kMaxConvWidth][kPairs];
  float2 window_[kMaxConvWidth - 1][kPairs];
};

// `scale` x / sqrt(sum of its squares), padded with zeros, into one row or two.
template <typename T, int kPairs>
__device__ void store_normed(const float2 (&x)[kPairs], float scale, int padded_dim, T* target,
                             T* also) {
  constexpr auto first_pair = &Convolution<T, kPairs>::first_pair;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    sum = fmaf(x[i].x, x[i].x, sum);
    sum = fmaf(x[i].y, x[i].y, sum);
  }
  const float factor = scale / sqrtf(warp_sum(sum) + 1e-6f);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int c = first_pair() + 64 * i;
    if (c >= padded_dim) continue;
    const float2 normed = {x[i].x * factor, x[i].y * factor};
    store_pair(target + c, normed);
    if (also != nullptr) store_pair(also + c, normed);
  }
}

template <typename T, int kPairs>
__device__ void store_vector(const DeltaProblem& p, const DeltaSequence& s, int row, int key_head,
                             const VectorPlace& place, const float2 (&x)[kPairs]) {
  if (place.index == 0) {
    const int position = s.first + row - s.first_row;
    const bool is_kept = s.is_short() && position >= s.last_chunk();
    store_normed(x, 1.f, p.layout.key_dim, p.key<T>(row, key_head),
                 is_kept ? log_key<T>(p, s, key_head, position) : nullptr);
  } else if (place.index == 1) {
    const float scale = 1 / sqrtf(static_cast<float>(p.key_dim));
    store_normed<T>(x, scale, p.layout.key_dim, p.query<T>(row, key_head), nullptr);
  } else {
    float* const value = p.value(row, place.head) + Convolution<T, kPairs>::first_pair();
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (Convolution<T, kPairs>::first_pair() + 64 * i < p.layout.value_dim) {
        store_pair(value + 64 * i, x[i]);
      }
    }
  }
}

// A vector of rows row .. end - 1, which are a sequence's.
template <typename T, int kPairs, int kRowsAhead>
__device__ void prepare_vectors(const DeltaProblem& p, const DeltaSequence& s, int row, int end,
                                int key_head, const VectorPlace& place,
                                Convolution<T, kPairs>& convolution) {
  convolution.begin(DeltaInputs<T>(p, s), s.first + row - s.first_row);
#pragma unroll 1
  for (; row < end; row += kRowsAhead) {
    float2 x[kRowsAhead][kPairs];
    convolution.read(row, end - 1, x);
#pragma unroll
    for (int r = 0; r < kRowsAhead; ++r) {
      if (row + r >= end) break;
      convolution.convolve(x[r]);
      store_vector<T>(p, s, row + r, key_head, place, x[r]);
    }
  }
}

// g and beta of the key head's value heads, of a row a lane.
template <typename T>
__device__ void prepare_gates(const DeltaProblem& p, int first, int end, int key_head) {
  const int group = p.group();
  for (int i = static_cast<int>(threadIdx.x) % 32; i < (end - first) * group; i += 32) {
    const int row = first + i / group, head = p.value_head(key_head, i % group);
    const T* const in = static_cast<const T*>(p.in) + row * p.in_width();
    const float b = load(in + p.b_column(head));
    const float a = load(in + p.a_column(head)) + p.params.dt_bias[head];
    DeltaGate& gate = *p.gate(row, head);
    gate.g = p.params.decay[head] * (a > 20.f ? a : log1pf(expf(a)));
    gate.beta = p.params.beta_scale / (1.f + expf(-b));
  }
}

// Into L2, what a sequence's first new row is convolved with.
template <typename T>
__device__ void prefetch_inputs(const DeltaProblem& p, const DeltaSequence& s,
                                const VectorPlace& place) {
  constexpr int kLine = 64;  // bfloat16
  const DeltaInputs<T> inputs(p, s);
  const int lines = (place.dim + kLine - 1) / kLine, kept = p.conv_width - 1;
  const int i = static_cast<int>(threadIdx.x) % 32;
  if (i >= lines * kept) return;
  const T* const x = inputs.row(s.first - kept + i / lines);
  if (x != nullptr) prefetch_line(x + place.channel + i % lines * kLine);
}

// A warp's part of a block's rows first .. end - 1.
template <typename T, int kPairs, int kRowsAhead>
__device__ void prepare_rows(const DeltaProblem& p, int first, int end, int key_head,
                             const VectorPlace& place) {
  Convolution<T, kPairs> convolution(p, place);
  for (int row = first; row < end;) {
    const DeltaSequence s(p, sequence_of_row(p, row));
    const int stop = min(end, s.first_row + s.num_rows);
    if (row == first) {
      if (s.next != nullptr && s.first_row == first) prefetch_inputs<T>(p, s, place);
      wait_for_predecessor();
      release_successor();
    }
    if (s.next != nullptr) {
      prepare_vectors<T, kPairs, kRowsAhead>(p, s, row, stop, key_head, place, convolution);
    }
    row = stop;
  }
  if (place.index == 1) prepare_gates<T>(p, first, end, key_head);
}

// What short sequences that begin in a block's rows leave for later steps. Their other rows read
// nothing that this overwrites.
template <typename T>
__device__ void keep_rows(const DeltaProblem& p, int first, int end, const VectorPlace& place) {
  wait_for_predecessor();
  release_successor();
  for (int row = first; row < end;) {
    const DeltaSequence s(p, sequence_of_row(p, row));
    if (s.next != nullptr && s.is_short() && row == s.first_row) {
      keep_inputs<T>(p, s, place.channel, place.dim);
    }
    row = s.first_row + s.num_rows;
  }
}

// A block has some rows of a key head, half of its warps a vector of them each. The others keep
// what of the vector's inputs later steps need.
template <typename T, int kPairs, int kRowsAhead>
__global__ void __launch_bounds__(2 * kMaxVectors * 32)
    prepare_rows_kernel(const __grid_constant__ DeltaProblem p, int tile_rows) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int num_vectors = static_cast<int>(blockDim.x) / 64;
  const int parts = (2 + p.group() + num_vectors - 1) / num_vectors;  // of a key head's vectors
  const int block = static_cast<int>(blockIdx.x) / parts, key_head = block % p.num_key_heads;
  const int first = block / p.num_key_heads * tile_rows;
  const int end = min(first + tile_rows, p.num_tokens);
  const int part = static_cast<int>(blockIdx.x) % parts;
  const VectorPlace place(p, key_head, part * num_vectors + warp % num_vectors);
  if (place.index >= 2 + p.group()) return;
  if (warp < num_vectors) {
    prepare_rows<T, kPairs, kRowsAhead>(p, first, end, key_head, place);
  } else {
    keep_rows<T>(p, first, end, place);
  }
}

// Of a long sequence, whose log was read until now: what its rows become of what they read for a
// value head, if that is left to do, and what later steps need.
template <typename T>
__device__ void finish_rows(const DeltaProblem& p, const DeltaSequence& s, int row, int end,
                            int head) {
  const int key_head = p.key_head_of(head), lane = static_cast<int>(threadIdx.x) % 32;
  const bool is_first = head == p.value_head(key_head, 0);
  if (p.takes_chunks) {
    const RowWriter<T> writer(p, head);
#pragma unroll 1
    for (int r = row; r < end; r += kManyAhead) {
      writer.template write<kManyAhead>(r, end - r, p.value(r, head), p.row_layout.bytes / 4);
    }
    const int r = max(row, s.row(s.last_chunk())) + lane;
    if (r < end) *log_gate(p, s, head, r - s.row(s.last_chunk())) = p.gate(r, head)->sum;
  }
  for (int r = max(row, s.row(s.last_chunk())); is_first && r < end; ++r) {
    T* const key = log_key<T>(p, s, key_head, s.first + r - s.first_row);
    for (int c = 2 * lane; c < p.layout.key_dim; c += 64) {
      store_pair(key + c, load_pair(p.key<T>(r, key_head) + c));
    }
  }
  if (row != s.first_row) return;
  keep_inputs<T>(p, s, p.v_channel(head), p.value_dim);
  if (!is_first) return;
  keep_inputs<T>(p, s, p.k_channel(key_head), p.key_dim);
  keep_inputs<T>(p, s, p.q_channel(key_head), p.key_dim);
}

// A warp has some rows of a value head.
template <typename T>
__global__ void __launch_bounds__(kFinishWarps * 32)
    finish_rows_kernel(const __grid_constant__ DeltaProblem p) {
  wait_for_predecessor();
  release_successor();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int i = static_cast<int>(blockIdx.x) * kFinishWarps + warp;
  const int head = i % p.num_value_heads, first = i / p.num_value_heads * kTileRows;
  const int end = min(first + kTileRows, p.num_tokens);
  for (int row = first; row < end;) {
    const DeltaSequence s(p, sequence_of_row(p, row));
    const int stop = min(end, s.first_row + s.num_rows);
    if (!s.is_short() && s.next != nullptr) {
      finish_rows<T>(p, s, row, stop, head);
    } else if (!s.is_short() && p.takes_chunks) {
      for (int r = row; r < stop; ++r) clear_row<T>(p, r, head);
    }
    row = stop;
  }
}

}  // namespace

void launch_prepare_rows(cudaStream_t stream, const DeltaProblem& p, DType act) {
  const int tile_rows = p.max_query_len > 1 ? kTileRows : 1;
  const int tiles = (p.num_tokens + tile_rows - 1) / tile_rows;
  const int all = 2 + p.num_value_heads / p.num_key_heads, num_vectors = std::min(all, kMaxVectors);
  const int parts = (all + num_vectors - 1) / num_vectors;
  const int num_pairs = (std::max(p.layout.key_dim, p.layout.value_dim) + 63) / 64;
  with_act_type(act, [&]<typename T>(T) {
    with_constant<1, 2, 3>(num_pairs, [&]<int kPairs>() {
      const auto kernel = tile_rows > 1 ? prepare_rows_kernel<T, kPairs, kManyAhead>
                                        : prepare_rows_kernel<T, kPairs, 1>;
      launch(stream, kernel, static_cast<unsigned>(tiles * p.num_key_heads * parts),
             2 * num_vectors * 32, 0, p, tile_rows);
    });
  });
}

void launch_finish_rows(cudaStream_t stream, const DeltaProblem& p, DType act) {
  const int warps = (p.num_tokens + kTileRows - 1) / kTileRows * p.num_value_heads;
  with_act_type(act, [&]<typename T>(T) {
    launch(stream, finish_rows_kernel<T>,
           static_cast<unsigned>((warps + kFinishWarps - 1) / kFinishWarps), kFinishWarps * 32, 0,
           p);
  });
}

}  // namespace nanovllm::cuda
