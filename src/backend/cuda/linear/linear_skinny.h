// Matrix products with few rows, where streaming the weights is all that counts; see
// linear_skinny.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/backend.h"

namespace nanovllm::cuda {

// What becomes of the product's rows.
enum class Epilogue {
  kStore,      // out = y
  kAdd,        // out (float32) += y rounded to bfloat16
  kActAndMul,  // out[I] = activation(y[0, I)) * y[I, 2I), both rounded to bfloat16 before
};

// y[R,N] = x[R,K] W[N,K]^T + bias, all bfloat16 but the bias.
struct FusedProduct {
  // Of the weight. Paths take the layouts that they have kernels for: all of them plain ones, and
  // ProductPath the others.
  WeightLayout layout = WeightLayout::kPlain;
  int rows = 0;          // R
  int out_features = 0;  // N
  int in_features = 0;   // K
  const void* weight = nullptr;
  const float* bias = nullptr;  // [N], or none
  const void* x = nullptr;      // [R,K] bfloat16
  Epilogue epilogue = Epilogue::kStore;
  Activation activation = Activation::kSilu;
  void* out = nullptr;  // [R,N] bfloat16, or float32 with kAdd, or [R,N/2] with kActAndMul
};

// With a norm, x is the RMSNorm of a float32 residual stream, rounded to bfloat16.
struct SkinnyProduct : FusedProduct {
  NormParams norm = {};                // no weight = none
  DType out_dtype = DType::kBFloat16;  // with kStore
  // A row's result is the same for any number of rows, and any number is taken.
  bool fixed_order = false;
};

// More rows are left to cuBLASLt, but for a fixed order.
constexpr int kMaxSkinnyRows = 8;
constexpr int kFixedOrderRows = 32;  // at once

namespace skinny {
struct Plan;
}
// Of a product that this plan divides; see linear_skinny_plan.h.
void launch_skinny(cudaStream_t stream, const SkinnyProduct& product, const skinny::Plan& plan);

}  // namespace nanovllm::cuda
