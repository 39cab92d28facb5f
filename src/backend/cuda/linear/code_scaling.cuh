// What kernels of products with codes have in common: see code_product.cuh.
#pragma once

#include "backend/cuda/device/activation.cuh"
#include "backend/cuda/linear/code_product.h"

namespace nanovllm::cuda {

// Two 8 x 8 matrices of shared memory: lanes 0 to 15 give the addresses of their rows.
__device__ inline void load_two_matrices(uint32_t (&x)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];\n"
               : "=r"(x[0]), "=r"(x[1])
               : "r"(address));
}

// What a sum is before an activation. `weight`: of those one behind the other the first row; `row`:
// of it as it is packed; `feature`: which one that is.
__device__ inline float scaled_output(const CodeProduct& p, int64_t weight, int row, int feature,
                                      float y) {
  if (p.shape.is_row_scaled) {
    const auto* const scales = reinterpret_cast<const float*>(static_cast<const char*>(p.codes) +
                                                              p.shape.row_scales_offset());
    y *= scales[weight + row];
  }
  y = p.shape.divides_by_factor ? y / p.shape.factor : y * p.shape.factor;
  return p.bias == nullptr ? y : y + p.bias[weight + feature];
}

// The output of a gate and an up that are rows r and r + 8 of a tile.
__device__ inline float gated_output(const CodeProduct& p, int64_t weight, int tile, int r,
                                     float gate, float up) {
  const int row = tile * kTileRows + r, feature = tile * 8 + r;
  return gate_and_mul(p.activation, scaled_output(p, weight, row, feature, gate),
                      scaled_output(p, weight, row + 8, p.features / 2 + feature, up));
}

__device__ inline void store_output(const CodeProduct& p, int64_t row, int feature, int64_t first,
                                    float y) {
  const int64_t at = (first + row) * p.out_stride + feature;
  if (p.out_dtype == DType::kFloat32) {
    static_cast<float*>(p.out)[at] = y;
  } else {
    store(static_cast<__nv_bfloat16*>(p.out) + at, y);
  }
}

}  // namespace nanovllm::cuda
