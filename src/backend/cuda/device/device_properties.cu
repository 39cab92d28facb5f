#include <algorithm>

#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/device/device_properties.h"

namespace nanovllm::cuda {
namespace {

#ifdef NANOVLLM_CUDA_MAX_SHARED_MEMORY
constexpr size_t kMaxSharedBytes = NANOVLLM_CUDA_MAX_SHARED_MEMORY;  // of a block
#else
constexpr size_t kMaxSharedBytes = 0;  // as much as the device has
#endif

// Compiled for the same architectures as every kernel of the build.
__global__ void probe_kernel() {}

// Of the build's code for this machine's GPUs, times ten.
int code_architecture() {
  static const int result = [] {
    cudaFuncAttributes attributes = {};
    NANOVLLM_CUDA_CHECK(cudaFuncGetAttributes(&attributes, probe_kernel));
    return attributes.ptxVersion;
  }();
  return result;
}

}  // namespace

cudaDeviceProp device_properties(int device) {
  cudaDeviceProp properties = {};
  NANOVLLM_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  if (code_architecture() < properties.major * 10 + properties.minor) {
    properties.major = code_architecture() / 10;
    properties.minor = code_architecture() % 10;
  }
  if (kMaxSharedBytes > 0) {
    auto& block_bytes = properties.sharedMemPerBlockOptin;
    auto& all_bytes = properties.sharedMemPerMultiprocessor;
    block_bytes = std::min(block_bytes, kMaxSharedBytes);
    all_bytes = std::min(all_bytes, kMaxSharedBytes + properties.reservedSharedMemPerBlock);
  }
  return properties;
}

bool supports_programmatic_launch() { return code_architecture() >= 90; }

void allow_shared_memory(const void* kernel, size_t bytes) {
  if (kMaxSharedBytes > 0) {  // refuses what a device with no more would
    cudaFuncAttributes attributes = {};
    NANOVLLM_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
    if (attributes.sharedSizeBytes + bytes > kMaxSharedBytes) {
      check(cudaErrorInvalidValue, "cudaFuncSetAttribute");
    }
  }
  NANOVLLM_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(bytes)));
}

}  // namespace nanovllm::cuda
