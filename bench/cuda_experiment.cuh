// What the experiments with kernels share: device memory, numbers by chance, medians.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "backend/cuda/device.cuh"

namespace nanovllm::cuda {

__host__ __device__ inline uint32_t hash(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

// In [centre - spread, centre + spread), times a power of two from 2^-scales to 2^scales; the same
// again after `period` numbers.
template <typename T>
__global__ void fill_kernel(T* out, int64_t count, int64_t period, uint32_t seed, float centre,
                            float spread, int scales) {
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const uint32_t x = hash(static_cast<uint32_t>(i % period) * 2 + hash(seed));
    const int scale = static_cast<int>(hash(x) % (2 * scales + 1)) - scales;
    store(out + i,
          ldexpf(centre + spread * 0x1p-31f * static_cast<float>(static_cast<int>(x)), scale));
  }
}

// Zeros.
template <typename T>
T* allocate(int64_t count) {
  T* p = nullptr;
  NANOVLLM_CUDA_CHECK(cudaMalloc(&p, count * sizeof(T)));
  NANOVLLM_CUDA_CHECK(cudaMemset(p, 0, count * sizeof(T)));
  NANOVLLM_CUDA_CHECK(cudaDeviceSynchronize());
  return p;
}

template <typename T>
T* random(int64_t count, float centre, float spread) {
  static uint32_t seed = 0;
  T* p = allocate<T>(count);
  fill_kernel<<<1024, 256>>>(p, count, count, ++seed, centre, spread, 0);
  NANOVLLM_CUDA_CHECK(cudaDeviceSynchronize());
  return p;
}

// As float32.
template <typename T>
std::vector<float> to_host(const void* p, int64_t count) {
  std::vector<T> values(count);
  NANOVLLM_CUDA_CHECK(cudaMemcpy(values.data(), p, count * sizeof(T), cudaMemcpyDeviceToHost));
  return std::vector<float>(values.begin(), values.end());
}

// ||got - want|| / ||want||; infinite where there is a NaN.
inline double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    norm += double{want[i]} * want[i];
  }
  return std::isfinite(error) && norm > 0 ? std::sqrt(error / norm) : INFINITY;
}

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

inline cudaDeviceProp the_device() {
  cudaDeviceProp device;
  NANOVLLM_CUDA_CHECK(cudaGetDeviceProperties(&device, 0));
  if (device.major != 9) {
    std::fprintf(stderr, "%s is no Hopper GPU, for which these kernels are\n", device.name);
    std::exit(1);
  }
  return device;
}

}  // namespace nanovllm::cuda
