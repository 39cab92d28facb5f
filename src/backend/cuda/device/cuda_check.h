// CUDA's error codes as exceptions.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

namespace nanovllm::cuda {

// Throws Error(kOutOfMemory) or Error(kInternal) naming the call and CUDA's own sentence.
void check(cudaError_t status, const char* call);
void check(cublasStatus_t status, const char* call);

}  // namespace nanovllm::cuda

#define NANOVLLM_CUDA_CHECK(call) ::nanovllm::cuda::check((call), #call)
