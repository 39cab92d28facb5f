// Hopper's products of a warpgroup, four warps whose first is a multiple of four: 64 features by n
// rows by 16 of K, both operands from shared memory. For code that is compiled for sm_90a only.
//
// Operands are tiles of 64 elements of K, 128 bytes a line, with 16-byte pieces swizzled within 8
// lines as the copy engine's 128-byte swizzle leaves them; tiles start at multiples of 1024 bytes.
// Of the sums d[n / 2] thread t holds, for j < n / 8, rows 8 j + t % 4 * 2 and the next one of
// feature t / 32 * 16 + t % 32 / 4 in d[4 j] and d[4 j + 1], and of 8 features on in the two after.
#pragma once

#include <cstdint>

// The sums d[0, n) of a product as its operands %0 .. %n-1, and their names in its text.
#define NANOVLLM_SUMS_8(i)                                                                    \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define NANOVLLM_SUMS_16(i) NANOVLLM_SUMS_8(i), NANOVLLM_SUMS_8(i + 8)
#define NANOVLLM_SUMS_32(i) NANOVLLM_SUMS_16(i), NANOVLLM_SUMS_16(i + 16)
#define NANOVLLM_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define NANOVLLM_NAMES_16 NANOVLLM_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NANOVLLM_NAMES_24 NANOVLLM_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NANOVLLM_NAMES_32 NANOVLLM_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define NANOVLLM_NAMES_48                                                         \
  NANOVLLM_NAMES_32                                                               \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
  "%47"
#define NANOVLLM_NAMES_64                                                         \
  NANOVLLM_NAMES_48                                                               \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, " \
  "%63"

namespace nanovllm::cuda {

// Describes a tile at this address of shared memory, see "matrix descriptor" in the PTX manual:
// 128-byte swizzle, 1024 bytes from 8 lines to the next 8. One step of 16 along K adds 2.
__device__ inline uint64_t describe_tile(uint32_t address) {
  constexpr uint64_t kLayout = uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 16;
  return kLayout | (address & 0x3ffff) >> 4;
}

// Before the first product, and after registers of sums were touched.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until at most kPending groups of products are under way.
template <int kPending>
__device__ inline void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// d[64 features, n rows] += a[64 features, 16] b[n rows, 16], or = where not kAdds.
__device__ inline void multiply_tile(float (&d)[8], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {" NANOVLLM_NAMES_8
               "}, %8, %9, 1, 1, 1, 0, 0;"
               : NANOVLLM_SUMS_8(0)
               : "l"(a), "l"(b));
}

__device__ inline void multiply_tile(float (&d)[16], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {" NANOVLLM_NAMES_16
               "}, %16, %17, 1, 1, 1, 0, 0;"
               : NANOVLLM_SUMS_16(0)
               : "l"(a), "l"(b));
}

__device__ inline void multiply_tile(float (&d)[24], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {" NANOVLLM_NAMES_24
               "}, %24, %25, 1, 1, 1, 0, 0;"
               : NANOVLLM_SUMS_16(0), NANOVLLM_SUMS_8(16)
               : "l"(a), "l"(b));
}

template <bool kAdds = true>
__device__ void multiply_tile(float (&d)[32], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" NANOVLLM_NAMES_32
               "}, %32, %33, %34, 1, 1, 0, 0;"
               : NANOVLLM_SUMS_32(0)
               : "l"(a), "l"(b), "n"(kAdds));
}

__device__ inline void multiply_tile(float (&d)[48], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {" NANOVLLM_NAMES_48
               "}, %48, %49, 1, 1, 1, 0, 0;"
               : NANOVLLM_SUMS_32(0), NANOVLLM_SUMS_16(32)
               : "l"(a), "l"(b));
}

template <bool kAdds = true>
__device__ void multiply_tile(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" NANOVLLM_NAMES_64
               "}, %64, %65, %66, 1, 1, 0, 0;"
               : NANOVLLM_SUMS_32(0), NANOVLLM_SUMS_32(32)
               : "l"(a), "l"(b), "n"(kAdds));
}

}  // namespace nanovllm::cuda
