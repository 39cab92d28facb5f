// Loads and stores of several neighbouring elements at once, as float32 in registers.
#pragma once

#include "backend/cuda/device/device.cuh"

namespace nanovllm::cuda {

// x[0..n) of an address aligned to n elements; n is 1, 4 or 8.
template <int n>
__device__ inline void load_vector(float (&x)[n], const float* p) {
  if constexpr (n == 1) {
    x[0] = *p;
  } else {
#pragma unroll
    for (int i = 0; i < n; i += 4) {
      const float4 v = *reinterpret_cast<const float4*>(p + i);
      x[i] = v.x;
      x[i + 1] = v.y;
      x[i + 2] = v.z;
      x[i + 3] = v.w;
    }
  }
}

template <int n>
__device__ inline void store_vector(float* p, const float (&x)[n]) {
  if constexpr (n == 1) {
    *p = x[0];
  } else {
#pragma unroll
    for (int i = 0; i < n; i += 4) {
      *reinterpret_cast<float4*>(p + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    }
  }
}

// The two bfloat16 of a register, the first in its low half.
__device__ inline float2 unpack_bfloat16(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

__device__ inline uint32_t pack_bfloat16(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

template <int n>
__device__ inline void load_vector(float (&x)[n], const __nv_bfloat16* p) {
  if constexpr (n == 1) {
    x[0] = load(p);
  } else {
    uint32_t pairs[n / 2];
    if constexpr (n == 4) {
      const uint2 v = *reinterpret_cast<const uint2*>(p);
      pairs[0] = v.x;
      pairs[1] = v.y;
    } else {
      static_assert(n == 8);
      const uint4 v = *reinterpret_cast<const uint4*>(p);
      pairs[0] = v.x;
      pairs[1] = v.y;
      pairs[2] = v.z;
      pairs[3] = v.w;
    }
#pragma unroll
    for (int i = 0; i < n; i += 2) {
      const float2 v = unpack_bfloat16(pairs[i / 2]);
      x[i] = v.x;
      x[i + 1] = v.y;
    }
  }
}

template <int n>
__device__ inline void store_vector(__nv_bfloat16* p, const float (&x)[n]) {
  if constexpr (n == 1) {
    store(p, x[0]);
  } else {
    uint32_t pairs[n / 2];
#pragma unroll
    for (int i = 0; i < n; i += 2) pairs[i / 2] = pack_bfloat16(x[i], x[i + 1]);
    if constexpr (n == 4) {
      *reinterpret_cast<uint2*>(p) = make_uint2(pairs[0], pairs[1]);
    } else {
      static_assert(n == 8);
      *reinterpret_cast<uint4*>(p) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  }
}

}  // namespace nanovllm::cuda
