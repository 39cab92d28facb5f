// Products of few rows by whole warps, whose lanes share K: an element is each lane's chain of
// fused multiply-adds and then the sum over the lanes, whatever else the warp computes.
#pragma once

#include <type_traits>

#include "backend/cuda/device/vector.cuh"

namespace nanovllm::cuda {

// Elements of 16 bytes, which is what a load brings at most.
template <typename T>
constexpr int kVectorOf = 16 / static_cast<int>(sizeof(T));

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
        if (first + j * 32 + lane >= count) b[j][f] = Vector{};
        load_vector(wide, reinterpret_cast<const T*>(&b[j][f]));
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          load_vector(v, reinterpret_cast<const T*>(&a[j][r]));
#pragma unroll
          for (int e = 0; e < kVector; ++e) sum[r][f] = fmaf(v[e], wide[e], sum[r][f]);
        }
      }
    }
  }
}

}  // namespace nanovllm::cuda
