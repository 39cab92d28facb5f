// A packed weight: as checkpoints have them, [N,K] row by row.
#pragma once

#include <memory>

#include "backend/cuda/linear/linear_skinny.h"
#include "ops/backend.h"

namespace nanovllm {

struct CudaLinearWeight final : LinearWeight {
  const void* data = nullptr;      // [N, K] of dtype
  std::unique_ptr<Buffer> memory;  // that `data` lies in, or none: a table's
  std::unique_ptr<Buffer> bias;    // [N] float32, or none
  // Rounded, for cuBLASLt, which takes one of the result's dtype; where dtype is bfloat16.
  std::unique_ptr<Buffer> rounded_bias;

  const float* bias_data() const {
    return bias == nullptr ? nullptr : static_cast<const float*>(bias->data());
  }
};

// Of a packed weight, whose rows are the caller's to fill in.
inline cuda::SkinnyProduct skinny_product(const LinearWeight& weight) {
  const auto& w = static_cast<const CudaLinearWeight&>(weight);
  cuda::SkinnyProduct product;
  product.out_features = static_cast<int>(w.out_features);
  product.in_features = static_cast<int>(w.in_features);
  product.weight = w.data;
  product.bias = w.bias_data();
  return product;
}

}  // namespace nanovllm
