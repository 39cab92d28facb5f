// The tensor cores' m16n8k16 products of bfloat16 with float32 sums, and what feeds them.
//
// Of a fragment a lane holds, with r = lane / 4 and c = lane % 4,
//   A [16, 16] row-major: (r, 2c), (r + 8, 2c), (r, 2c + 8), (r + 8, 2c + 8), two columns each;
//   B [16, 8]: rows 2c, 2c + 1 and rows 2c + 8, 2c + 9 of column r;
//   C [16, 8] float32: (r, 2c), (r, 2c + 1), (r + 8, 2c), (r + 8, 2c + 1).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace nanovllm::cuda {

__device__ inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices of shared memory: lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices(uint32_t (&x)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address));
}
__device__ inline void load_matrices_transposed(uint32_t (&x)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address));
}

// An 8 x 8 matrix that the warp holds two columns a lane, transposed.
__device__ inline uint32_t transpose_matrix(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(y) : "r"(x));
  return y;
}

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ inline uint4 load_shared(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address));
  return x;
}

// 16 bytes from global to shared memory, asynchronously; zeros where !valid.
__device__ inline void copy_async(uint32_t target, const void* source, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(target), "l"(source),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Until at most n of this thread's groups of copies are under way.
template <int n>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(n) : "memory");
}

}  // namespace nanovllm::cuda
