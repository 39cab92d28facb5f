#include "backend/cuda/device/memory.h"

#include <cstring>

#include "backend/cuda/device/cuda_check.h"
#include "base/check.h"

namespace nanovllm::cuda {

DeviceBuffer::DeviceBuffer(size_t bytes) {
  if (bytes == 0) return;
  if (const cudaError_t status = cudaMalloc(&data_, bytes); status != cudaSuccess) {
    if (status != cudaErrorMemoryAllocation) check(status, "cudaMalloc");
    cudaGetLastError();  // a failed allocation is no sticky error
    size_t free = 0, total = 0;
    NANOVLLM_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    throw_error(ErrorCode::kOutOfMemory,
                "the GPU is out of memory: {} bytes were needed and {} are free", bytes, free);
  }
  bytes_ = bytes;
}

DeviceBuffer::~DeviceBuffer() { cudaFree(data_); }

PinnedBuffer::PinnedBuffer(size_t bytes) {
  if (bytes == 0) return;
  if (const cudaError_t status = cudaHostAlloc(&data_, bytes, cudaHostAllocPortable);
      status != cudaSuccess) {
    if (status != cudaErrorMemoryAllocation) check(status, "cudaHostAlloc");
    cudaGetLastError();
    throw_error(ErrorCode::kOutOfMemory,
                "the system gives no {} bytes of pinned memory to the GPU's driver", bytes);
  }
  bytes_ = bytes;
  std::memset(data_, 0, bytes);
}

PinnedBuffer::~PinnedBuffer() { cudaFreeHost(data_); }

}  // namespace nanovllm::cuda
