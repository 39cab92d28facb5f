// A value head's state in a block of threads, and the two products that go over it:
//   S^T x for keys and queries x,   S = e^G S + sum over a chunk's rows of (e^(G - G_i) u_i) k_i^T.
// In bfloat16 they are the tensor cores', over ascending steps of 16, whatever the number of rows;
// in float32 chains of multiply-adds over ascending elements.
#pragma once

#include "backend/cuda/device/mma.cuh"
#include "backend/cuda/recurrent/delta_rows.cuh"

namespace nanovllm::cuda {

// [16 rows from `x`] times the kTiles * 8 rows from `y`, both in shared memory in rows of `stride`,
// over the first 16 * steps elements: sum[n] is a fragment of columns 8 n .. 8 n + 7. a(step)
// gives x's fragment.
template <int kTiles, typename Fragment>
__device__ void multiply_tiles(float (&sum)[kTiles][4], const __nv_bfloat16* y, int stride,
                               int steps, Fragment&& a) {
  constexpr int kMaxSteps = kMaxStateKeyDim / 16;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t source =
      shared_address(y + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8);
#pragma unroll
  for (int step = 0; step < kMaxSteps; ++step) {
    if (step >= steps) break;
    uint32_t x[4];
    a(x, step);
#pragma unroll
    for (int n = 0; n < kTiles; n += 2) {
      uint32_t b[4];
      load_matrices(b, source + (8 * n * stride + 16 * step) * 2);
      mma_bf16(sum[n], x, b[0], b[1]);
      if (n + 1 < kTiles) mma_bf16(sum[(n + 1) % kTiles], x, b[2], b[3]);
    }
  }
}

// Calls store(row, column, value) for a lane's elements of the fragments.
template <int kTiles, typename Store>
__device__ void for_each_element(const float (&sum)[kTiles][4], int first_row, Store&& store) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      store(first_row + lane / 4 + e / 2 * 8, 8 * n + lane % 4 * 2 + e % 2, sum[n][e]);
    }
  }
}

// In bfloat16 a warp has the state's rows of 16 neighbouring values, as fragments of sums: those of
// columns 8 n .. 8 n + 7 in s_[n]. In memory they lie as [value / 16][key / 8][lane] fragments.
template <typename T>
class StateTile {
 public:
  // The warp's.
  __device__ explicit StateTile(int first_value) : first_value_(first_value) {}

  __device__ void load(const DeltaProblem& p, const DeltaSequence& s, int head) {
    const float4* const from = s.state == nullptr ? nullptr : place(p, s.state, head);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float4 x = {};
      if (from != nullptr && 8 * n < p.layout.key_dim) x = from[32 * n];
      s_[n][0] = x.x;
      s_[n][1] = x.y;
      s_[n][2] = x.z;
      s_[n][3] = x.w;
    }
  }
  // Into the next slot.
  __device__ void store(const DeltaProblem& p, const DeltaSequence& s, int head) const {
    float4* const to = const_cast<float4*>(place(p, s.next, head));
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      if (8 * n < p.layout.key_dim) to[32 * n] = {s_[n][0], s_[n][1], s_[n][2], s_[n][3]};
    }
  }

  // Calls store(value, column, sum) for all values and the first kColumns rows of `vectors`.
  template <int kColumns, typename Store>
  __device__ void multiply(const DeltaProblem& p, const T* vectors, int stride,
                           Store&& store) const {
    float sum[(kColumns + 7) / 8][4] = {};
    multiply_tiles(sum, vectors, stride, p.layout.key_dim / 16, [&](uint32_t(&a)[4], int step) {
      const float(&left)[4] = s_[2 * step];
      const float(&right)[4] = s_[2 * step + 1];
      a[0] = pack_bfloat16(left[0], left[1]);
      a[1] = pack_bfloat16(left[2], left[3]);
      a[2] = pack_bfloat16(right[0], right[1]);
      a[3] = pack_bfloat16(right[2], right[3]);
    });
    for_each_element(sum, first_value_, store);
  }

  // `values`: u of the chunk's rows, which are weighted with `rests`.
  __device__ void fold(const DeltaProblem& p, const T* keys, int stride, const float* values,
                       int value_stride, const float* rests, float decay) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (float& element : s_[n]) element *= decay;
    }
    const uint32_t source = shared_address(keys + lane % 16 * stride + lane / 16 * 8);
    const float* const column = values + first_value_ + lane / 4;
#pragma unroll 1
    for (int step = 0; step < kStateChunk / 16; ++step) {
      uint32_t high[4], low[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // see mma.cuh for who has what of a fragment
        const int row = 16 * step + i / 2 * 8 + lane % 4 * 2;
        const float* const x = column + row * value_stride + i % 2 * 8;
        const float first = rests[row] * x[0], second = rests[row + 1] * x[value_stride];
        high[i] = pack_bfloat16(first, second);
        const float2 rounded = unpack_bfloat16(high[i]);
        low[i] = pack_bfloat16(first - rounded.x, second - rounded.y);
      }
#pragma unroll
      for (int n = 0; n < kTiles; n += 2) {
        if (8 * n >= p.layout.key_dim) break;
        uint32_t b[4];
        load_matrices_transposed(b, source + (16 * step * stride + 8 * n) * 2);
        mma_bf16(s_[n], high, b[0], b[1]);
        mma_bf16(s_[n], low, b[0], b[1]);
        mma_bf16(s_[n + 1], high, b[2], b[3]);
        mma_bf16(s_[n + 1], low, b[2], b[3]);
      }
    }
  }

 private:
  static constexpr int kTiles = kMaxStateKeyDim / 8;

  __device__ const float4* place(const DeltaProblem& p, const char* slot, int head) const {
    const auto* const state = reinterpret_cast<const float*>(slot) + head * p.layout.state_floats();
    return reinterpret_cast<const float4*>(state + first_value_ * p.layout.key_dim) +
           threadIdx.x % 32;
  }

  int first_value_;
  float s_[kTiles][4];
};

// In float32 it stays in the slot, [key_dim][value_dim], and is folded into the next slot. Two
// threads share a value.
template <>
class StateTile<float> {
 public:
  __device__ explicit StateTile(int) {}

  __device__ void load(const DeltaProblem& p, const DeltaSequence& s, int head) {
    state_ = s.state == nullptr ? nullptr : place(p, s.state, head);
    next_ = const_cast<float*>(place(p, s.next, head));
  }
  __device__ void store(const DeltaProblem&, const DeltaSequence&, int) const {}

  template <int kColumns, typename Store>
  __device__ void multiply(const DeltaProblem& p, const float* vectors, int stride,
                           Store&& store) const {
    constexpr int kEach = kColumns / 2;
    const int width = p.layout.value_dim, value = static_cast<int>(threadIdx.x) % width;
    const int first = static_cast<int>(threadIdx.x) / width * kEach;
    float sum[kEach] = {};
#pragma unroll 2
    for (int k = 0; state_ != nullptr && k < p.key_dim; ++k) {
      const float element = state_[k * width + value];
#pragma unroll
      for (int c = 0; c < kEach; ++c) {
        sum[c] = fmaf(vectors[(first + c) * stride + k], element, sum[c]);
      }
    }
#pragma unroll
    for (int c = 0; c < kEach; ++c) store(value, first + c, sum[c]);
  }

  __device__ void fold(const DeltaProblem& p, const float* keys, int stride, const float* values,
                       int value_stride, const float* rests, float decay) {
    const int width = p.layout.value_dim, value = static_cast<int>(threadIdx.x) % width;
#pragma unroll 1
    for (int k = static_cast<int>(threadIdx.x) / width; k < p.key_dim; k += 2) {
      float sum = state_ == nullptr ? 0.f : decay * state_[k * width + value];
#pragma unroll 8
      for (int i = 0; i < kStateChunk; ++i) {
        sum = fmaf(keys[i * stride + k], rests[i] * values[i * value_stride + value], sum);
      }
      next_[k * width + value] = sum;
    }
    state_ = next_;
  }

 private:
  __device__ static const float* place(const DeltaProblem& p, const char* slot, int head) {
    return reinterpret_cast<const float*>(slot) + head * p.layout.state_floats();
  }

  const float* state_ = nullptr;
  float* next_ = nullptr;
};

}  // namespace nanovllm::cuda
