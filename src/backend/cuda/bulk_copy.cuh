// Copies of whole stretches of memory into shared memory by the copy engine of sm_90 and later,
// completing on a barrier in shared memory ("mbarrier").
#pragma once

#include "backend/cuda/mma.cuh"

namespace nanovllm::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ inline void init_barrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}
// To be called by the thread that initialised barriers, before the copy engine uses them.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Counts as one arrival; the barrier also waits for so many bytes.
__device__ inline void expect_bytes(uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

// `bytes` is a multiple of 16, and so are both addresses.
__device__ inline void copy_bulk(void* shared, const void* global, int bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Until the barrier's phase of this parity is over.
__device__ inline void wait_for_barrier(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

#endif

}  // namespace nanovllm::cuda
