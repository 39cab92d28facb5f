// Launches of kernels that wait for the other ranks' kernels.
#pragma once

#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/peers/peer_queue.h"

namespace nanovllm::cuda {

// launch() on a PeerQueue, of the same kernel by all ranks.
template <typename... Params, typename... Args>
void launch_together(const PeerQueue& queue, void (*kernel)(Params...), dim3 grid, dim3 block,
                     size_t shared_bytes, Args&&... args) {
  // A kernel's first launch would load it while others, who have launched theirs, wait.
  if (queue.barrier != nullptr && queue.loaded.insert(reinterpret_cast<void*>(kernel)).second) {
    cudaFuncAttributes attributes;
    NANOVLLM_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  }
  queue.together([&] {
    launch(queue.stream, kernel, grid, block, shared_bytes, std::forward<Args>(args)...);
  });
}

}  // namespace nanovllm::cuda
