// Small device helpers shared by the kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/device/cuda_check.h"
#include "base/dtype.h"

namespace nanovllm::cuda {

__device__ inline float load(const float* p) { return *p; }
__device__ inline float load(const __nv_bfloat16* p) { return __bfloat162float(*p); }
__device__ inline void store(float* p, float x) { *p = x; }
__device__ inline void store(__nv_bfloat16* p, float x) { *p = __float2bfloat16_rn(x); }

__device__ inline float round_to_bfloat16(float x) {
  return __bfloat162float(__float2bfloat16_rn(x));
}

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}

// Sum over the block on every thread; blockDim.x is a multiple of 32. The order depends on
// blockDim.x only.
__device__ inline float block_sum(float x) {
  __shared__ float partial[32];
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? partial[threadIdx.x % 32] : 0.f;
  x = warp_sum(x);
  __syncthreads();  // `partial` may be used again
  return x;
}

// The sum of the x of the lanes up to this one, which is `lane`.
template <typename T>
__device__ T warp_prefix_sum(T x, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step <<= 1) {
    const T other = __shfl_up_sync(0xffffffffu, x, step);
    if (lane >= step) x += other;
  }
  return x;
}

// Into L2.
__device__ inline void prefetch_line(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// Calls f(T{}) with the element type of `dtype`.
template <typename F>
void with_act_type(DType dtype, F&& f) {
  if (dtype == DType::kBFloat16) {
    f(__nv_bfloat16{});
  } else {
    f(float{});
  }
}

// Calls f(Unit{}) with the largest unit, up to 16 bytes, of which sizes and addresses with these
// bits, multiples of 2, are multiples.
template <typename F>
void with_unit(uint64_t bits, F&& f) {
  if (bits % sizeof(uint4) == 0) return f(uint4{});
  if (bits % sizeof(uint32_t) == 0) return f(uint32_t{});
  f(uint16_t{});
}

inline int div_up(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

}  // namespace nanovllm::cuda
