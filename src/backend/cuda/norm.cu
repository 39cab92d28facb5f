// RMSNorm (https://arxiv.org/abs/1910.07467), alone or after adding a block's output to the
// residual stream. A block a row; moves 4 H bytes in (8 H in and 4 H out with the addition) plus
// the act tensors, once each: the row waits in registers between the two passes.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"

namespace nanovllm::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxPerThread = 64;  // rows of up to 16,384 elements stay in registers

template <typename T, int kPerThread>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(T* out, float* residual, const T* act, const float* x, const float* weight,
                    int hidden, float eps, float offset) {
  const int64_t base = static_cast<int64_t>(blockIdx.x) * hidden;
  float value[kPerThread];
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    const int i = threadIdx.x + j * kThreads;
    if (i >= hidden) break;
    if (residual != nullptr) {
      value[j] = residual[base + i] + load(act + base + i);
      residual[base + i] = value[j];
    } else {
      value[j] = x[base + i];
    }
    sum += value[j] * value[j];
  }
  const float scale = rsqrtf(block_sum(sum) / static_cast<float>(hidden) + eps);
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    const int i = threadIdx.x + j * kThreads;
    if (i >= hidden) break;
    store(out + base + i, value[j] * scale * (offset + weight[i]));
  }
}

}  // namespace

void launch_rms_norm(cudaStream_t stream, void* out, DType dtype, float* residual, const void* act,
                     const float* x, const float* weight, int num_rows, int hidden, float eps,
                     float offset) {
  if (num_rows == 0) return;
  NANOVLLM_CHECK(hidden <= kThreads * kMaxPerThread);
  with_act_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto launch = [&](auto kernel) {
      kernel<<<num_rows, kThreads, 0, stream>>>(static_cast<T*>(out), residual,
                                                static_cast<const T*>(act), x, weight, hidden, eps,
                                                offset);
    };
    if (hidden <= 4 * kThreads) {
      launch(rms_norm_kernel<T, 4>);
    } else if (hidden <= 16 * kThreads) {
      launch(rms_norm_kernel<T, 16>);
    } else {
      launch(rms_norm_kernel<T, kMaxPerThread>);
    }
  });
  NANOVLLM_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nanovllm::cuda
