#include "backend/cuda/cuda_check.h"

#include "base/check.h"

namespace nanovllm::cuda {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  const auto code =
      status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kInternal;
  throw_error(code, "CUDA failed: {} ({}) in {}", cudaGetErrorString(status),
              cudaGetErrorName(status), call);
}

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw_error(ErrorCode::kInternal, "cuBLASLt failed: {} in {}", cublasLtGetStatusName(status),
              call);
}

}  // namespace nanovllm::cuda
