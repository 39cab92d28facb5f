// Element access for tensors of act dtype.
#pragma once

#include "base/dtype.h"
#include "ops/tensor.h"

namespace nanovllm {

inline float load(const Tensor& t, int64_t i) {
  return t.dtype == DType::kBFloat16 ? to_float(t.bf16()[i]) : t.f32()[i];
}

inline void store(const Tensor& t, int64_t i, float value) {
  if (t.dtype == DType::kBFloat16)
    t.bf16()[i] = to_bfloat16(value);
  else
    t.f32()[i] = value;
}

}  // namespace nanovllm
