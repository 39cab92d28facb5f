// Hopper's asynchronous copies: boxes of tensor maps into shared memory, and stores into the shared
// memory of the cluster's other blocks. For code of sm_90 and later.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/device/bulk_copy.cuh"

namespace nanovllm::cuda {

__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(&map)) : "memory");
}

// The box of a matrix, see make_tensor_map(), at this row and chunk. `kOnce`: no kernel reads it
// again soon.
template <bool kOnce>
__device__ inline void load_box(void* target, const CUtensorMap& map, int row, int chunk,
                                const Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %2, %4}], [%5], %6;" ::"r"(shared_address(target)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(0), "r"(row), "r"(chunk), "r"(barrier.address()),
      "l"(kOnce ? kEvictFirst : kEvictNormal)
      : "memory");
}

// 64 columns from `column` on of the map's box of rows, see make_row_map().
template <bool kOnce>
__device__ inline void load_row_box(void* target, const CUtensorMap& map, int column, int row,
                                    const Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(target)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row), "r"(barrier.address()),
      "l"(kOnce ? kEvictFirst : kEvictNormal)
      : "memory");
}

// A box of lines, see make_line_map().
__device__ inline void load_lines(void* target, const CUtensorMap& map, int row, int chunk,
                                  const Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(target)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(0), "r"(row), "r"(chunk), "r"(barrier.address())
      : "memory");
}

// Stores into the shared memory of block `rank`, whose barrier counts the 16 bytes.
__device__ inline void store_remote(const void* target, const Barrier& barrier, int rank,
                                    float4 x) {
  asm volatile(
      "{\n.reg .b32 data, bar;\n"
      "mapa.shared::cluster.u32 data, %0, %2;\n"
      "mapa.shared::cluster.u32 bar, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [data], {%3, %4, %5, %6}, "
      "[bar];\n}" ::"r"(shared_address(target)),
      "r"(barrier.address()), "r"(rank), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
      : "memory");
}

// The blocks of a cluster wait for each other in two steps, both taken by all their threads.
__device__ inline void arrive_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void wait_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

}  // namespace nanovllm::cuda
