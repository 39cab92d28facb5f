#include <algorithm>
#include <deque>
#include <memory>

#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/device/device_context.h"
#include "base/assert.h"

namespace nanovllm::cuda {
namespace {

#ifdef NANOVLLM_CUDA_MAX_SHARED_MEMORY
constexpr size_t kMaxSharedBytes = NANOVLLM_CUDA_MAX_SHARED_MEMORY;  // of a block
#else
constexpr size_t kMaxSharedBytes = 0;  // as much as the device has
#endif

// Compiled for the same architectures as every kernel of the build. It has arrays in shared memory
// where the others have products of warpgroups.
__global__ void probe_kernel([[maybe_unused]] int* out) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ volatile int array[1];
  array[0] = 1;
  *out = array[0];
#endif
}

// The thread's current device until this goes.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    NANOVLLM_CUDA_CHECK(cudaGetDevice(&before_));
    NANOVLLM_CUDA_CHECK(cudaSetDevice(device));
  }
  ~CurrentDevice() { cudaSetDevice(before_); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
};

// Of the current device.
DeviceTraits find_traits(int device) {
  DeviceTraits traits;
  cudaDeviceProp& properties = traits.properties;
  NANOVLLM_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  cudaFuncAttributes code = {};
  NANOVLLM_CUDA_CHECK(cudaFuncGetAttributes(&code, probe_kernel));
  const int architecture = code.ptxVersion;  // times ten
  if (architecture < properties.major * 10 + properties.minor) {
    properties.major = architecture / 10;
    properties.minor = architecture % 10;
  }
  if (kMaxSharedBytes > 0) {
    auto& block_bytes = properties.sharedMemPerBlockOptin;
    auto& all_bytes = properties.sharedMemPerMultiprocessor;
    block_bytes = std::min(block_bytes, kMaxSharedBytes);
    all_bytes = std::min(all_bytes, kMaxSharedBytes + properties.reservedSharedMemPerBlock);
  }
  traits.has_programmatic_launch = architecture >= 90;
  traits.has_wgmma = properties.major == 9 && properties.minor == 0 && code.sharedSizeBytes > 0;
  return traits;
}

}  // namespace

DeviceContext& DeviceContext::of(int device) {
  // Never destroyed: an engine may end behind everything static of this file, and gives back then.
  static std::deque<DeviceContext>& contexts = *[] {
    auto all = std::make_unique<std::deque<DeviceContext>>();
    for (int i = 0; i < kMaxDevices; ++i) all->emplace_back(i);
    return all.release();
  }();
  NANOVLLM_CHECK(device >= 0 && device < kMaxDevices);
  return contexts[static_cast<size_t>(device)];
}

DeviceContext& DeviceContext::current() {
  int device = 0;
  NANOVLLM_CUDA_CHECK(cudaGetDevice(&device));
  return of(device);
}

const DeviceTraits& DeviceContext::traits() {
  std::call_once(found_, [&] {
    const CurrentDevice current(device_);
    traits_ = find_traits(device_);
  });
  return traits_;
}

DeviceContext::Taken DeviceContext::take(Exclusive what, std::string holder) {
  NANOVLLM_CHECK(!holder.empty());
  const std::lock_guard lock(mutex_);
  if (!place_of(what).empty()) return {std::nullopt, place_of(what)};
  place_of(what) = holder;
  return {Hold(this, what), std::move(holder)};
}

DeviceContext::Hold::~Hold() {
  if (context_ == nullptr) return;
  const std::lock_guard lock(context_->mutex_);
  context_->place_of(what_).clear();
}

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
