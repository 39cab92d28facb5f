#include "backend/cuda/device/cuda_check.h"

#include "base/check.h"

namespace nanovllm::cuda {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  const auto code =
      status == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kInternal;
  // A kernel's fault stays: from then on every call fails with it. Others are forgotten here.
  cudaGetLastError();
  const bool is_lost = cudaFree(nullptr) == status;
  throw_error(code, "CUDA failed: {} ({}) in {}{}", cudaGetErrorString(status),
              cudaGetErrorName(status), call,
              is_lost ? "; this process can't use the device any more" : "");
}

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw_error(ErrorCode::kInternal, "cuBLASLt failed: {} in {}", cublasLtGetStatusName(status),
              call);
}

}  // namespace nanovllm::cuda
