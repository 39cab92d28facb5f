// Copies by the copy engine into shared memory, and barriers there that count their bytes as well
// as arrivals ("mbarrier"). For code of sm_90 and later.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/device/mma.cuh"

namespace nanovllm::cuda {

// A phase ends when all arrivals are there and all bytes announced.
class Barrier {
 public:
  // One lane speaks for its warp, but for racecheck, which takes that for the lane's accesses only.
#ifdef NANOVLLM_RACECHECK
  static constexpr int kWarpArrivals = 32;
#else
  static constexpr int kWarpArrivals = 1;
#endif

  __device__ void init_warps(int warps) { init(warps * kWarpArrivals); }
  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals)
                 : "memory");
  }
  // Arrives and announces bytes that copies will bring.
  __device__ void expect(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()),
                 "r"(bytes)
                 : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }
  // A whole warp's arrival, by all its lanes, after what it orders.
  __device__ void arrive_warp() {
    if constexpr (kWarpArrivals == 1) __syncwarp();
    if (threadIdx.x % 32 < kWarpArrivals) arrive();
  }
  // Until the phase of this parity has ended.
  __device__ void wait(uint32_t parity) const {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(address()),
        "r"(parity)
        : "memory");
  }
  __device__ uint32_t address() const { return shared_address(this); }

 private:
  uint64_t state_;
};

// Of a ring of n stages: those who fill one say so to those who empty it, and back.
template <int n>
struct StageBarriers {
  Barrier full[n], empty[n];

  // By one thread.
  __device__ void init(int consumer_warps) {
    for (int i = 0; i < n; ++i) {
      full[i].init(1);
      empty[i].init_warps(consumer_warps);
    }
  }
};

// A place in a ring, and the parity of the round.
template <int n>
struct RingPlace {
  int place = 0;
  uint32_t parity = 0;

  __device__ void next() {
    if (++place == n) {
      place = 0;
      parity ^= 1;
    }
  }
};

// kCount of a block's threads meet at one of its 16 barriers.
template <int kCount>
__device__ void sync_threads(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kCount) : "memory");
}

// Makes initialised barriers known to the copy engine, and to the cluster once these have synced.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Between a thread's own writes to shared memory and later copies to the same place.
__device__ inline void order_copies_behind_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// What L2 is told of data that are copied; the first: no kernel reads them again soon.
constexpr uint64_t kEvictFirst = 0x12F0000000000000, kEvictNormal = 0x1000000000000000;

// A multiple of 16 bytes between addresses that are. The engine takes twice the requests for
// targets that are not aligned to 128.
__device__ inline void copy_bulk(uint32_t target, const void* source, int bytes,
                                 const Barrier& barrier, uint64_t policy = kEvictNormal) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(target),
      "l"(source), "r"(bytes), "r"(barrier.address()), "l"(policy)
      : "memory");
}

}  // namespace nanovllm::cuda
