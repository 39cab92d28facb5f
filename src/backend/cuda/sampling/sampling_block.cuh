// A block of logits in the hands of a warp: lane l holds logits 4 l .. 4 l + 3.
#pragma once

#include <cstdint>

#include "backend/cuda/device/device.cuh"
#include "backend/cuda/sampling/sampling_kernels.h"

namespace nanovllm::cuda {

constexpr float kMinusInfinity = -__builtin_huge_valf();
constexpr float kNan = __builtin_nanf("");

// Whether rows of `vocab_size` logits from `logits` on can be read 16 bytes at a time.
__host__ __device__ inline bool is_vector_aligned(const float* logits, int64_t vocab_size) {
  return vocab_size % 4 == 0 && reinterpret_cast<uintptr_t>(logits) % 16 == 0;
}

// x = the lane's logits of block `block`; `padding` behind the end of the row
// and for a negative block.
__device__ inline void load_block(float (&x)[4], const float* row, int block, int64_t vocab_size,
                                  bool vector_aligned, float padding) {
  const int64_t id = static_cast<int64_t>(block) * kSampleBlock + threadIdx.x % 32 * 4;
  if (vector_aligned) {
    float4 v = make_float4(padding, padding, padding, padding);
    if (block >= 0 && id < vocab_size) v = *reinterpret_cast<const float4*>(row + id);
    x[0] = v.x;
    x[1] = v.y;
    x[2] = v.z;
    x[3] = v.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = block >= 0 && id + i < vocab_size ? row[id + i] : padding;
    }
  }
}

// The mask in `place`, or null for place -1.
__device__ inline const uint32_t* mask_of(const uint32_t* masks, int32_t place, int num_blocks) {
  return place < 0 ? nullptr : masks + static_cast<int64_t>(place) * num_blocks * kMaskWords;
}

// x[i], what load_block gave for block[i], becomes -inf where the mask has a 0. Rows without a mask
// pay for one branch: the loads of many blocks in front of it stay together. 16 bytes a warp and
// block, beside the 512 of load_block.
template <int kCount>
__device__ inline void apply_mask(float (&x)[kCount][4], const uint32_t* mask,
                                  const int (&block)[kCount], int num_blocks) {
  if (mask == nullptr) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t bits[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const bool exists = block[i] >= 0 && block[i] < num_blocks;
    bits[i] = exists ? mask[block[i] * kMaskWords + lane / 8] >> (lane % 8 * 4) : ~0u;
  }
#pragma unroll
  for (int i = 0; i < kCount * 4; ++i) {
    if ((bits[i / 4] >> (i % 4) & 1) == 0) x[i / 4][i % 4] = kMinusInfinity;
  }
}

// exp((x - top) / temperature), and 0 where that leaves the normal float32 numbers: a mass is zero
// just when all its weights are. rate = log2(e) / temperature.
__device__ inline float weight_of(float x, float top, float rate) {
  const float exponent = (x - top) * rate;
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return exponent < -126.f ? 0.f : power;
}

// Integers in the order of the floats: -0 equals +0 and NaN is the largest.
__device__ inline int32_t ordered(float x) {
  const int32_t bits = __float_as_int(x + 0.f);
  return x != x ? INT32_MAX : bits ^ ((bits >> 31) & INT32_MAX);
}
__device__ inline float from_ordered(int32_t key) {
  return __int_as_float(key ^ ((key >> 31) & INT32_MAX));
}

// Largest x of the warp, NaN if there is one. All lanes get it.
__device__ inline float warp_largest(const float (&x)[4]) {
  const int32_t key = max(max(ordered(x[0]), ordered(x[1])), max(ordered(x[2]), ordered(x[3])));
  return from_ordered(__reduce_max_sync(0xffffffffu, key));
}

// Sum of exp((x - top) / temperature) over the warp; 0 for rate 0 or when nothing is above -inf.
__device__ inline float warp_mass(const float (&x)[4], float top, float rate) {
  if (rate == 0 || top == kMinusInfinity) return 0;
  return warp_sum((weight_of(x[0], top, rate) + weight_of(x[1], top, rate)) +
                  (weight_of(x[2], top, rate) + weight_of(x[3], top, rate)));
}

}  // namespace nanovllm::cuda
