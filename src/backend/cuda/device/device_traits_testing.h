// The GPUs that plans are tested for.
#pragma once

#include <cstddef>

#include "backend/cuda/device/device_traits.h"

namespace nanovllm::cuda {

struct Gpu {
  const char* name;
  DeviceTraits traits = {};
};

// With so much shared memory a multiprocessor, of which a block may have 1 KiB less.
inline Gpu make_gpu(const char* name, int major, int minor, int multiprocessors, size_t kib) {
  Gpu gpu = {.name = name};
  cudaDeviceProp& properties = gpu.traits.properties;
  properties.major = major;
  properties.minor = minor;
  properties.multiProcessorCount = multiprocessors;
  properties.sharedMemPerBlockOptin = (kib - 1) << 10;
  properties.sharedMemPerMultiprocessor = kib << 10;
  gpu.traits.has_programmatic_launch = major >= 9;
  gpu.traits.has_wgmma = major == 9;
  return gpu;
}

inline const Gpu kA100 = make_gpu("A100", 8, 0, 108, 164);
inline const Gpu kRtx4090 = make_gpu("RTX 4090", 8, 9, 128, 100);
inline const Gpu kRtx5090 = make_gpu("RTX 5090", 12, 0, 170, 100);
// As far as plans go these two are one device.
inline const Gpu kH100 = make_gpu("H100", 9, 0, 132, 228);
inline const Gpu kH200 = make_gpu("H200", 9, 0, 132, 228);
inline const Gpu kGpus[] = {kA100, kRtx4090, kRtx5090, kH100, kH200};

}  // namespace nanovllm::cuda
