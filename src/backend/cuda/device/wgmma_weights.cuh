// Hopper's products whose left operand lies in registers, as mma.cuh has it. See wgmma.cuh.
#pragma once

#include <cstdint>

#include "backend/cuda/device/wgmma.cuh"

namespace nanovllm::cuda {

// Describes lines of 64 columns, 128 bytes, swizzled within 8 lines; the next 64 columns begin
// `chunk_bytes` on. One step of 16 lines adds 128.
__device__ inline uint64_t describe_columns(uint32_t address, int chunk_bytes) {
  constexpr uint64_t kLayout = uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32;
  return kLayout | static_cast<uint64_t>(chunk_bytes >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// Keeps what the compiler does with registers of products on its side of here: behind the wait for
// sums, and before the products that take them.
template <int n>
__device__ void settle(float (&d)[n]) {
#pragma unroll
  for (float& x : d) asm volatile("" : "+f"(x)::"memory");
}
template <int n>
__device__ void settle(uint32_t (&a)[n][4]) {
#pragma unroll
  for (auto& four : a) {
#pragma unroll
    for (uint32_t& x : four) asm volatile("" : "+r"(x)::"memory");
  }
}

// d[64, n] += a[64, 16] b[16, n], where b has its columns, not K, next to each other: attention's
// weights times its values.
__device__ inline void multiply_weights(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NANOVLLM_NAMES_32
               "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
               : NANOVLLM_SUMS_32(0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ inline void multiply_weights(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NANOVLLM_NAMES_64
               "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
               : NANOVLLM_SUMS_32(0), NANOVLLM_SUMS_32(32)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

// d[64 features, n rows] += a[64 features, 16] b[n rows, 16], or = where not kAdds.
template <bool kAdds>
__device__ void multiply_features(float (&d)[4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, "
      "%9, 1, 1, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdds));
}

template <bool kAdds>
__device__ void multiply_features(float (&d)[8], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {" NANOVLLM_NAMES_8
               "}, {%8, %9, %10, %11}, %12, %13, 1, 1, 0;"
               : NANOVLLM_SUMS_8(0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdds));
}

template <bool kAdds>
__device__ void multiply_features(float (&d)[16], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" NANOVLLM_NAMES_16
               "}, {%16, %17, %18, %19}, %20, %21, 1, 1, 0;"
               : NANOVLLM_SUMS_16(0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdds));
}

template <bool kAdds>
__device__ void multiply_features(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NANOVLLM_NAMES_32
               "}, {%32, %33, %34, %35}, %36, %37, 1, 1, 0;"
               : NANOVLLM_SUMS_32(0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kAdds));
}

}  // namespace nanovllm::cuda
