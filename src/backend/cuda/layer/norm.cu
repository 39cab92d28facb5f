// RMSNorm (https://arxiv.org/abs/1910.07467), alone or after adding a block's output to the
// residual stream. A block a row; moves 4 H bytes in (8 H in and 4 H out with the addition) plus
// the act tensors, once each: the row waits in registers between the two passes. Over all heads of
// q or k, a block reads its part of a row twice, the second time from the cache.
#include "backend/cuda/device/device.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/vector.cuh"
#include "backend/cuda/layer/row_kernels.h"

namespace nanovllm::cuda {
namespace {

constexpr int kThreads = 256;

// A thread holds kPerThread vectors of kVector neighbouring elements.
template <typename T, int kVector, int kPerThread>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(T* out, float* residual, const T* act, float act_scale, const float* x,
                    const float* weight, int hidden, float eps) {
  release_successor();
  wait_for_predecessor();
  const int64_t base = static_cast<int64_t>(blockIdx.x) * hidden;
  float value[kPerThread][kVector];
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    const int i = (threadIdx.x + j * kThreads) * kVector;
    if (i >= hidden) break;
    if (residual != nullptr) {
      float branch[kVector];
      load_vector(value[j], residual + base + i);
      load_vector(branch, act + base + i);
#pragma unroll
      for (int e = 0; e < kVector; ++e) value[j][e] += act_scale * branch[e];
      store_vector(residual + base + i, value[j]);
    } else if (x != nullptr) {
      load_vector(value[j], x + base + i);
    } else {
      load_vector(value[j], act + base + i);
    }
#pragma unroll
    for (int e = 0; e < kVector; ++e) sum += value[j][e] * value[j][e];
  }
  const float scale = rsqrtf(block_sum(sum) / static_cast<float>(hidden) + eps);
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    const int i = (threadIdx.x + j * kThreads) * kVector;
    if (i >= hidden) break;
    if (weight != nullptr) {
      float factor[kVector];
      load_vector(factor, weight + i);
#pragma unroll
      for (int e = 0; e < kVector; ++e) value[j][e] *= scale * factor[e];
    }
    store_vector(out + base + i, value[j]);
  }
}

// Block (row, 0) has the heads of q, block (row, 1) those of k. A KV head that several ranks hold
// counts for each of them: the mean stays the same.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    norm_all_heads_kernel(T* qkv, float* means, HeadsNormParams norm, int row_width, int world_size,
                          HeadsNormPart part) {
  constexpr int kVector = 8;
  release_successor();
  wait_for_predecessor();
  const bool is_key = blockIdx.y == 1;
  const int width = is_key ? norm.k_width : norm.q_width;
  const float* const weight = is_key ? norm.k_weight : norm.q_weight;
  T* const x = qkv + int64_t{blockIdx.x} * row_width + (is_key ? norm.q_width : 0);
  float& ranks_mean = means[2 * blockIdx.x + blockIdx.y];
  float value[kVector], factor[kVector];
  float mean = ranks_mean / static_cast<float>(world_size);
  if (part != HeadsNormPart::kScale) {
    float sum = 0;
    for (int i = threadIdx.x * kVector; i < width; i += kThreads * kVector) {
      load_vector(value, x + i);
#pragma unroll
      for (int e = 0; e < kVector; ++e) sum += value[e] * value[e];
    }
    mean = block_sum(sum) / static_cast<float>(width);
  }
  if (part == HeadsNormPart::kMeans) {
    if (threadIdx.x == 0) ranks_mean = mean;
    return;
  }
  const float scale = rsqrtf(mean + norm.eps);
  for (int i = threadIdx.x * kVector; i < width; i += kThreads * kVector) {
    load_vector(value, x + i);
    load_vector(factor, weight + i);
#pragma unroll
    for (int e = 0; e < kVector; ++e) value[e] *= scale * factor[e];
    store_vector(x + i, value);
  }
}

}  // namespace

void launch_rms_norm(cudaStream_t stream, void* out, DType dtype, float* residual, const void* act,
                     float act_scale, const float* x, const float* weight, int num_rows, int hidden,
                     float eps) {
  if (num_rows == 0) return;
  with_act_type(dtype, [&]<typename T>(T) {
    const auto run = [&](auto kernel) {
      launch(stream, kernel, num_rows, kThreads, 0, static_cast<T*>(out), residual,
             static_cast<const T*>(act), act_scale, x, weight, hidden, eps);
    };
    if (hidden % 4 != 0) {
      static_assert(kMaxUnalignedNormSize == 32 * kThreads);
      NANOVLLM_CHECK(hidden <= kMaxUnalignedNormSize);
      run(rms_norm_kernel<T, 1, 32>);
    } else if (hidden <= 4 * kThreads) {
      run(rms_norm_kernel<T, 4, 1>);
    } else if (hidden <= 16 * kThreads) {
      run(rms_norm_kernel<T, 4, 4>);
    } else {
      static_assert(kMaxNormSize == 64 * kThreads);
      NANOVLLM_CHECK(hidden <= kMaxNormSize);
      run(rms_norm_kernel<T, 4, 16>);
    }
  });
}

void launch_norm_all_heads(cudaStream_t stream, void* qkv, DType dtype, float* means,
                           const HeadsNormParams& norm, int num_rows, int width, int world_size,
                           HeadsNormPart part) {
  if (num_rows == 0) return;
  with_act_type(dtype, [&]<typename T>(T) {
    launch(stream, norm_all_heads_kernel<T>, dim3(num_rows, 2), dim3(kThreads), 0,
           static_cast<T*>(qkv), means, norm, width, world_size, part);
  });
}

}  // namespace nanovllm::cuda
