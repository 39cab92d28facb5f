// Matrix products of decode steps of many requests, on Hopper; see linear_wgmma.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/linear/linear_skinny.h"
#include "ops/backend.h"

namespace nanovllm::cuda {

// An RMSNorm without a kernel of its own. The product that ends a block of the layer adds to the
// residual stream and leaves, for each row, what the norm's weight makes of it and parts of the sum
// of its squares; the next product is scaled by the norm as it leaves the tensor cores:
//   (s x w) W^T = s ((x w) W^T), with s = 1 / sqrt(mean(x^2) + eps).
// The row is rounded to bfloat16 once in both orders, here before it is scaled.
struct SplitNorm {
  NormParams norm = {};
  void* weighted = nullptr;  // [R,H] bfloat16: x (offset + weight)
  float* squares = nullptr;  // [parts, R]
  int parts = 0;             // of the row
};

struct WgmmaProduct : FusedProduct {
  SplitNorm norm = {};       // whose weighted rows are meant instead of x; no weight = none
  SplitNorm next_norm = {};  // of kAdd's sums; no weight = none
};

// More rows are left to cuBLASLt.
constexpr int kMaxWgmmaRows = 128;
constexpr int kMaxSplitNorm = 8192;  // elements of a row

// Parts of a row's squares that a product of so many features and kAdd leaves.
int square_parts(int out_features);
// Memory for a SplitNorm of the most rows.
size_t split_norm_bytes();
// Of a product that plan_wgmma() divides, on a device with wgmma.
void launch_wgmma(cudaStream_t stream, const WgmmaProduct& product, int num_multiprocessors);

}  // namespace nanovllm::cuda
