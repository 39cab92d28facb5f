// activation(gate) * up, and the cap of logits. Both are bound by memory: 3 I (2 N) elements a row.
#include "backend/cuda/device/activation.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/vector.cuh"
#include "backend/cuda/layer/row_kernels.h"

namespace nanovllm::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kVector = 8;  // elements a thread, where rows are so aligned

template <typename T, int n>
__global__ void act_and_mul_kernel(T* out, const T* gate_up, int width, Activation activation) {
  release_successor();
  wait_for_predecessor();
  const int64_t row = blockIdx.x;
  const int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * n;
  if (i >= width) return;
  float gate[n], up[n];
  load_vector(gate, gate_up + row * 2 * width + i);
  load_vector(up, gate_up + row * 2 * width + width + i);
#pragma unroll
  for (int e = 0; e < n; ++e) up[e] = gate_and_mul(activation, gate[e], up[e]);
  store_vector(out + row * width + i, up);
}

__global__ void soft_cap_kernel(float* logits, int64_t count, float cap) {
  release_successor();
  wait_for_predecessor();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) logits[i] = cap * tanhf(logits[i] / cap);
}

}  // namespace

void launch_act_and_mul(cudaStream_t stream, void* out, const void* gate_up, DType dtype,
                        int num_rows, int width, Activation activation) {
  if (num_rows == 0) return;
  with_act_type(dtype, [&]<typename T>(T) {
    const auto run = [&](auto kernel, int n) {
      launch(stream, kernel, dim3(num_rows, div_up(width, n * kThreads)), kThreads, 0,
             static_cast<T*>(out), static_cast<const T*>(gate_up), width, activation);
    };
    if (width % kVector == 0) {
      run(act_and_mul_kernel<T, kVector>, kVector);
    } else {
      run(act_and_mul_kernel<T, 1>, 1);
    }
  });
}

void launch_soft_cap(cudaStream_t stream, float* logits, int64_t count, float cap) {
  if (count == 0) return;
  launch(stream, soft_cap_kernel, dim3(static_cast<unsigned>(div_up(count, int64_t{kThreads}))),
         kThreads, 0, logits, count, cap);
}

}  // namespace nanovllm::cuda
