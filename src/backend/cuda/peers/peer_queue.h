// Where a rank enqueues what waits for the other ranks.
//
// The ranks' threads launch such kernels, and graphs of them, together. They meet before: what one
// has to do first, as loading a kernel or freeing memory, may wait for the devices of all, and so
// none may be waiting for its launch yet. And they meet behind: what one does next may wait for its
// own device, with locks held (cuBLASLt's, while it loads a kernel) that others need for their
// launch.
#pragma once

#include <cuda_runtime_api.h>

#include <unordered_set>

#include "backend/cuda/peers/peer_memory.cuh"
#include "base/rank_barrier.h"

namespace nanovllm::cuda {

struct PeerQueue {
  cudaStream_t stream = nullptr;
  PeerGroup group = {};
  RankBarrier* barrier = nullptr;                       // null = this rank is alone
  mutable std::unordered_set<const void*> loaded = {};  // kernels that are on this rank's device

  // Calls launch() when all ranks are about to, and returns when all have. Throws Error(kInternal)
  // when another rank has failed.
  template <typename Launch>
  void together(Launch launch) const {
    if (barrier != nullptr) barrier->arrive_and_wait();
    launch();
    if (barrier != nullptr) barrier->arrive_and_wait();
  }
};

}  // namespace nanovllm::cuda
