// Products of few rows by whole warps, whose lanes share K: an element is each lane's chain of
// fused multiply-adds and then the sum over the lanes, whatever else the warp computes.
#pragma once

#include <type_traits>

#include "backend/cuda/vector.cuh"

namespace nanovllm::cuda {

// Elements of 16 bytes, which is what a load brings at most.
template <typename T>
constexpr int kVectorOf = 16 / static_cast<int>(sizeof(T));

__device__ inline void unpack(float (&x)[1], const float& v) { x[0] = v; }
__device__ inline void unpack(float (&x)[1], const __nv_bfloat16& v) { x[0] = load(&v); }
__device__ inline void unpack(float (&x)[4], const uint4& v) {
  x[0] = __uint_as_float(v.x), x[1] = __uint_as_float(v.y);
  x[2] = __uint_as_float(v.z), x[3] = __uint_as_float(v.w);
}
__device__ inline void unpack(float (&x)[8], const uint4& v) {
  const uint32_t pairs[] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack_bfloat16(pairs[i]);
    x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
  }
}

// A lane's share of x[r][k] . w[f][k], k a multiple of kVector, which is 1 or kVectorOf<T>: then
// rows begin at multiples of 16 bytes. Where rows are few, loads of several vectors are under way
// at once.
template <int kVector, int kRows, int kFeatures, typename T>
__device__ void multiply_rows(float (&sum)[kRows][kFeatures], const T* const (&x)[kRows],
                              const T* const (&w)[kFeatures], int k) {
  using Vector = std::conditional_t<kVector == 1, T, uint4>;
  constexpr int kBatch = kRows == 1 ? 8 / kFeatures : 1;
  const int count = k / kVector, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int first = 0; first < count; first += kBatch * 32) {
    Vector b[kBatch][kFeatures], a[kBatch][kRows];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = min(first + j * 32 + lane, count - 1);
#pragma unroll
      for (int f = 0; f < kFeatures; ++f) b[j][f] = reinterpret_cast<const Vector*>(w[f])[i];
#pragma unroll
      for (int r = 0; r < kRows; ++r) a[j][r] = reinterpret_cast<const Vector*>(x[r])[i];
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
#pragma unroll
      for (int f = 0; f < kFeatures; ++f) {
        float wide[kVector], v[kVector];
        unpack(wide, first + j * 32 + lane < count ? b[j][f] : Vector{});
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          unpack(v, a[j][r]);
#pragma unroll
          for (int e = 0; e < kVector; ++e) sum[r][f] = fmaf(v[e], wide[e], sum[r][f]);
        }
      }
    }
  }
}

}  // namespace nanovllm::cuda
