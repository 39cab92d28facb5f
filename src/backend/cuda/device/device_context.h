// What the process knows of a GPU, whichever of its engines asks, and which of them holds what
// there is only one of.
#pragma once

#include <array>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "backend/cuda/device/device_traits.h"

namespace nanovllm::cuda {

// What at most one holder of the process has of a device.
enum class Exclusive {
  // To launch kernels whose blocks wait for each other, so that all must be on the device at once:
  // two such kernels of two streams could each hold what the other waits for.
  kMeetingBlocks,
  // To launch kernels that wait for other devices' kernels.
  kMeetingDevices,
};

class DeviceContext {
 public:
  static constexpr int kMaxDevices = 64;
  // They outlive all else of the process. To ask for one costs nothing of its device.
  static DeviceContext& of(int device);
  static DeviceContext& current();  // of the thread's current device

  explicit DeviceContext(int device) : device_(device) {}
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  // Found out once, at the first call. Throws Error(kInternal) where CUDA fails.
  const DeviceTraits& traits();

  // Gives back what was taken when it goes.
  class Hold {
   public:
    Hold(Hold&& other) noexcept
        : context_(std::exchange(other.context_, nullptr)), what_(other.what_) {}
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    Hold& operator=(Hold&&) = delete;

   private:
    friend class DeviceContext;
    Hold(DeviceContext* context, Exclusive what) : context_(context), what_(what) {}
    DeviceContext* context_;
    Exclusive what_;
  };
  struct Taken {
    std::optional<Hold> hold;  // none where somebody has it
    std::string holder;        // who has it now, for people: "the engine of Qwen3-0.6B"
  };
  Taken take(Exclusive what, std::string holder);

 private:
  std::string& place_of(Exclusive what) { return holders_[static_cast<size_t>(what)]; }

  const int device_;
  std::once_flag found_;
  DeviceTraits traits_;
  std::mutex mutex_;
  std::array<std::string, 2> holders_;  // by Exclusive
};

// Lets a kernel's blocks have so many bytes of dynamic shared memory.
void allow_shared_memory(const void* kernel, size_t bytes);

}  // namespace nanovllm::cuda
