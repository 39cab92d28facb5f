// Pieces of a segment that several warps computed, and how they are put together
// (https://pytorch.org/blog/flash-decoding): those of a block's warps in shared memory, a head a
// warp; those of several blocks by the one in which the segment begins, to which the others hand
// theirs over.
#pragma once

#include "backend/cuda/attention/attention.cuh"
#include "backend/cuda/device/hand_over.cuh"
#include "backend/cuda/device/vector.cuh"

namespace nanovllm::cuda {

// A piece in shared memory: of each head the sum of the weighted values, the largest score and the
// total of the weights.
template <int kDim>
struct Partial {
  // A multiple of 4, to keep 16-byte accesses aligned.
  static constexpr __host__ __device__ int floats(int num_heads) {
    return num_heads * kDim + (2 * num_heads + 3) / 4 * 4;
  }
  float* data;
  int num_heads;
  __device__ float* values(int head) const { return data + head * kDim; }
  __device__ float* largest(int head) const { return data + num_heads * kDim + head; }
  __device__ float* total(int head) const { return data + num_heads * (kDim + 1) + head; }
};

// One head of a segment, by a warp.
template <int kDim>
class MergedHead {
 public:
  // In device memory: values, then the largest score and the total.
  static constexpr int kWords = kDim + 4;

  __device__ MergedHead(const Partial<kDim>& piece, int head)
      : largest_(*piece.largest(head)), total_(*piece.total(head)) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (is_inside(v)) load_vector(sum_[v], piece.values(head) + element(v));
    }
  }

  // Puts pieces 0 .. n - 1 together; n <= 32. piece(i) is a Partial.
  template <typename Piece>
  __device__ MergedHead(int n, int head, Piece&& piece) {
    const float own = lane_ < n ? *piece(lane_).largest(head) : -INFINITY;
    const float own_total = lane_ < n ? *piece(lane_).total(head) : 0;
    largest_ = own;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) {
      largest_ = fmaxf(largest_, __shfl_xor_sync(0xffffffffu, largest_, step));
    }
    const float own_weight = lane_ < n ? exp2f(own - largest_) : 0;
    total_ = own_weight * own_total;
#pragma unroll
    for (int step = 1; step < 32; step <<= 1) total_ += __shfl_xor_sync(0xffffffffu, total_, step);
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
      const float weight = __shfl_sync(0xffffffffu, own_weight, i);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (!is_inside(v)) continue;
        float x[4];
        load_vector(x, piece(i).values(head) + element(v));
#pragma unroll
        for (int e = 0; e < 4; ++e) sum_[v][e] += weight * x[e];
      }
    }
  }

  __device__ void send(uint32_t* words) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (is_inside(v)) store_words(words + element(v), words_of(sum_[v]));
    }
    const float rest[4] = {largest_, total_, 0, 0};
    if (lane_ == 0) store_words(words + kDim, words_of(rest));
  }

  // Adds n pieces that others send, and leaves holes. piece(i): where their words are.
  template <typename Piece>
  __device__ void receive(int n, Piece&& piece) {
    constexpr int kAtOnce = 4, kEach = kVectors + 1;
#pragma unroll 1
    for (int first = 0; first < n; first += kAtOnce) {
      uint4 words[kAtOnce * kEach];
      load_written(words, false, [&](int i) {
        const int v = i % kEach, index = first + i / kEach;
        if (index >= n || (v < kVectors && !is_inside(v))) return uint4{0, 0, 0, 0};
        return load_words(piece(index) + (v < kVectors ? element(v) : kDim));
      });
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (first + j >= n) continue;
        add(&words[j * kEach]);
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          if (is_inside(v)) store_words(piece(first + j) + element(v), kHoles);
        }
        if (lane_ == 0) store_words(piece(first + j) + kDim, kHoles);
      }
    }
  }

  // As the result of a sequence's query head among all results.
  template <bool kMayHaveGate>
  __device__ void write(__nv_bfloat16* out, const AttentionProblem& p, int seq, int head) const {
    __nv_bfloat16* const row = out + (static_cast<int64_t>(seq) * p.params.num_heads + head) * kDim;
    const float factor = 1 / (total_ + p.sink_weight(head, largest_));
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!is_inside(v)) continue;
      float x[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] = sum_[v][e] * factor;
      if constexpr (kMayHaveGate) p.apply_gate<__nv_bfloat16>(x, seq, head, element(v));
      store_vector(row + element(v), x);
    }
  }

 private:
  static constexpr int kVectors = (kDim + 127) / 128;  // of 4 neighbouring elements, a lane's

  __device__ int element(int v) const { return (v * 32 + lane_) * 4; }
  __device__ bool is_inside(int v) const { return element(v) < kDim; }
  __device__ static uint4 words_of(const float (&x)[4]) {
    return {__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
            __float_as_uint(x[3])};
  }

  __device__ void add(const uint4* words) {
    const uint4& rest = words[kVectors];
    const float piece_largest = __uint_as_float(rest.x);
    const float now = fmaxf(largest_, piece_largest);
    const float keep = exp2f(largest_ - now), weight = exp2f(piece_largest - now);
    largest_ = now;
    total_ = total_ * keep + __uint_as_float(rest.y) * weight;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const uint4& x = words[v];
      sum_[v][0] = sum_[v][0] * keep + __uint_as_float(x.x) * weight;
      sum_[v][1] = sum_[v][1] * keep + __uint_as_float(x.y) * weight;
      sum_[v][2] = sum_[v][2] * keep + __uint_as_float(x.z) * weight;
      sum_[v][3] = sum_[v][3] * keep + __uint_as_float(x.w) * weight;
    }
  }

  const int lane_ = static_cast<int>(threadIdx.x) % 32;
  float largest_, total_;
  float sum_[kVectors][4] = {};
};

}  // namespace nanovllm::cuda
