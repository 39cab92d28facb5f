// What plans depend on of a device: data, so that tests plan for devices that they don't have.
#pragma once

#include <cuda_runtime_api.h>

namespace nanovllm::cuda {

struct DeviceTraits {
  // The device's, but that its compute capability is not above that of the build's code for it:
  // code of an older architecture has none of a newer one's kernels. A build with
  // NANOVLLM_CUDA_MAX_SHARED_MEMORY takes no block to have more shared memory.
  cudaDeviceProp properties = {};
  // Whether kernels know how to wait for a predecessor: their code is for sm_90 or later.
  bool has_programmatic_launch = false;
  // Whether there are kernels with products of warpgroups: their code is for Hopper proper, sm_90a.
  bool has_wgmma = false;

  int num_multiprocessors() const { return properties.multiProcessorCount; }
  // Of shared memory, that a block may have at most.
  size_t block_bytes() const { return properties.sharedMemPerBlockOptin; }
};

}  // namespace nanovllm::cuda
