// What kernels may count on: the device's properties, as far as this build can use them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace nanovllm::cuda {

// The device's, but that its compute capability is not above that of the build's code for it: code
// of an older architecture has none of a newer one's kernels. A build with
// NANOVLLM_CUDA_MAX_SHARED_MEMORY takes no block to have more shared memory.
cudaDeviceProp device_properties(int device);

// Whether the kernels of this build know, on this machine's GPUs, how to wait for a predecessor
// (code for sm_90 or later is loaded).
bool supports_programmatic_launch();

// Lets a kernel's blocks have so many bytes of dynamic shared memory.
void allow_shared_memory(const void* kernel, size_t bytes);

}  // namespace nanovllm::cuda
