#include "backend/cuda/launch.cuh"

namespace nanovllm::cuda {
namespace {

// Compiled for the same architectures as every kernel of the build.
__global__ void probe_kernel() {}

}  // namespace

bool supports_programmatic_launch() {
  static const bool result = [] {
    cudaFuncAttributes attributes = {};
    NANOVLLM_CUDA_CHECK(cudaFuncGetAttributes(&attributes, probe_kernel));
    return attributes.ptxVersion >= 90;  // the architecture it was compiled for, times ten
  }();
  return result;
}

}  // namespace nanovllm::cuda
