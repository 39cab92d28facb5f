// Memory of the device, and of the host where the device reaches it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "ops/backend.h"

namespace nanovllm::cuda {

// On the current device. Throws Error(kOutOfMemory) with the bytes needed and free.
class DeviceBuffer final : public Buffer {
 public:
  explicit DeviceBuffer(size_t bytes);  // holds anything
  ~DeviceBuffer() override;
};

// Host memory that stays where it is: copies from it need nobody's help, and kernels may read it
// over the bus. Zeroed.
class PinnedBuffer final : public Buffer {
 public:
  explicit PinnedBuffer(size_t bytes);
  ~PinnedBuffer() override;
};

}  // namespace nanovllm::cuda
