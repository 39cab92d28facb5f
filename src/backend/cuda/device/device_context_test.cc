// What engines of one process hold of a device; needs none.
#include "backend/cuda/device/device_context.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace nanovllm::cuda {
namespace {

constexpr int kDevice = DeviceContext::kMaxDevices - 1;  // that no machine has

TEST(CudaDeviceContext, SaysWhoHoldsWhatThereIsOneOf) {
  DeviceContext& device = DeviceContext::of(kDevice);
  EXPECT_EQ(device.holder_of(Exclusive::kMeetingBlocks), "");
  {
    const auto first = device.take(Exclusive::kMeetingBlocks, "engine 1");
    ASSERT_TRUE(first.has_value());
    EXPECT_EQ(device.holder_of(Exclusive::kMeetingBlocks), "engine 1");
    EXPECT_FALSE(device.take(Exclusive::kMeetingBlocks, "engine 2").has_value());
    EXPECT_EQ(device.holder_of(Exclusive::kMeetingBlocks), "engine 1");
    const auto other = device.take(Exclusive::kMeetingDevices, "engine 2");
    EXPECT_TRUE(other.has_value());
    EXPECT_TRUE(DeviceContext::of(kDevice - 1).take(Exclusive::kMeetingBlocks, "engine 3"));
  }
  EXPECT_EQ(device.holder_of(Exclusive::kMeetingBlocks), "");
  EXPECT_TRUE(device.take(Exclusive::kMeetingBlocks, "engine 2").has_value());
}

TEST(CudaDeviceContext, AHoldThatMovesIsGivenBackOnce) {
  DeviceContext& device = DeviceContext::of(kDevice);
  std::vector<DeviceContext::Hold> holds;
  holds.push_back(*device.take(Exclusive::kMeetingBlocks, "engine 1"));
  EXPECT_EQ(device.holder_of(Exclusive::kMeetingBlocks), "engine 1");
  holds.clear();
  EXPECT_EQ(device.holder_of(Exclusive::kMeetingBlocks), "");
}

TEST(CudaDeviceContext, OneOfManyThreadsGetsIt) {
  DeviceContext& device = DeviceContext::of(kDevice);
  std::atomic<int> num_taken = 0, num_tried = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const auto hold = device.take(Exclusive::kMeetingBlocks, "a thread");
      if (hold) ++num_taken;
      ++num_tried;
      while (num_tried < 8) std::this_thread::yield();  // nobody gives back before all have tried
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_taken, 1);
}

}  // namespace
}  // namespace nanovllm::cuda
