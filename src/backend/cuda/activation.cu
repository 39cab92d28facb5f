// activation(gate) * up, and the bias of a linear layer. Both are bound by memory: 3 I (2 N)
// elements a row.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"

namespace nanovllm::cuda {
namespace {

constexpr int kThreads = 256;

template <Activation kActivation>
__device__ float activate(float x) {
  if constexpr (kActivation == Activation::kSilu) return x / (1.f + __expf(-x));
  if constexpr (kActivation == Activation::kGelu) return 0.5f * x * (1.f + erff(x * 0.70710678f));
  // https://arxiv.org/abs/1606.08415, section 2
  return 0.5f * x * (1.f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
}

template <typename T, Activation kActivation>
__global__ void act_and_mul_kernel(T* out, const T* gate_up, int width) {
  const int64_t row = blockIdx.x;
  const int i = blockIdx.y * kThreads + threadIdx.x;
  if (i >= width) return;
  const T* gate = gate_up + row * 2 * width;
  store(out + row * width + i, activate<kActivation>(load(gate + i)) * load(gate + width + i));
}

template <typename T>
__global__ void add_bias_kernel(T* out, const float* bias, int width) {
  const int64_t row = blockIdx.x;
  const int i = blockIdx.y * kThreads + threadIdx.x;
  if (i < width) store(out + row * width + i, load(out + row * width + i) + bias[i]);
}

}  // namespace

void launch_act_and_mul(cudaStream_t stream, void* out, const void* gate_up, DType dtype,
                        int num_rows, int width, Activation activation) {
  if (num_rows == 0) return;
  const dim3 grid(num_rows, div_up(width, kThreads));
  with_act_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto launch = [&](auto kernel) {
      kernel<<<grid, kThreads, 0, stream>>>(static_cast<T*>(out), static_cast<const T*>(gate_up),
                                            width);
    };
    switch (activation) {
      case Activation::kSilu:
        return launch(act_and_mul_kernel<T, Activation::kSilu>);
      case Activation::kGelu:
        return launch(act_and_mul_kernel<T, Activation::kGelu>);
      case Activation::kGeluTanh:
        return launch(act_and_mul_kernel<T, Activation::kGeluTanh>);
    }
  });
  NANOVLLM_CUDA_CHECK(cudaGetLastError());
}

void launch_add_bias(cudaStream_t stream, void* out, DType dtype, const float* bias, int num_rows,
                     int width) {
  if (num_rows == 0) return;
  with_act_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    add_bias_kernel<<<dim3(num_rows, div_up(width, kThreads)), kThreads, 0, stream>>>(
        static_cast<T*>(out), bias, width);
  });
  NANOVLLM_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nanovllm::cuda
