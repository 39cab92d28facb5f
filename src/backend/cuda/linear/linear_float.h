// Products whose elements' sums have one order; see linear_float.cu.
#pragma once

#include <cuda_runtime_api.h>

#include "base/dtype.h"

namespace nanovllm::cuda {

// out[T,N] = x[T,K] W[N,K]^T + bias[N], or without, in an order that is the same for any T.
void launch_linear_float(cudaStream_t stream, float* out, const void* x, DType dtype,
                         const void* weight, const float* bias, int num_rows, int n, int k);

}  // namespace nanovllm::cuda
