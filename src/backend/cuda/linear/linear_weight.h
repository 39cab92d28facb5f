// A packed weight: numbers as checkpoints have them, [N,K] row by row, or codes.
#pragma once

#include <memory>

#include "backend/cuda/linear/code_layout.h"
#include "backend/cuda/linear/linear_skinny.h"
#include "ops/backend.h"

namespace nanovllm {

struct CudaLinearWeight final : LinearWeight {
  // Its rows, those of one part behind those of another.
  struct Part {
    cuda::CodeShape shape;
    const void* codes;
  };

  const void* data = nullptr;      // [N, K] of dtype; null where there are parts
  std::vector<Part> parts;         // in codes, or none
  std::unique_ptr<Buffer> memory;  // that they lie in, or none: a table's
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
  product.layout = w.layout;
  product.weight = w.data;
  product.bias = w.bias_data();
  return product;
}

}  // namespace nanovllm
