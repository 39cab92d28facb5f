// What engines of one process hold of a device; needs none.
#include "backend/cuda/device/device_context.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace nanovllm::cuda {
namespace {

constexpr int kDevice = DeviceContext::kMaxDevices - 1;  // that no machine has

TEST(CudaDeviceContext, SaysWhoHoldsWhatThereIsOneOf) {
  DeviceContext& device = DeviceContext::of(kDevice);
  {
    const auto first = device.take(Exclusive::kMeetingBlocks, "engine 1");
    ASSERT_TRUE(first.hold);
    EXPECT_EQ(first.holder, "engine 1");
    for (int i = 0; i < 2; ++i) {
      const auto second = device.take(Exclusive::kMeetingBlocks, "engine 2");
      EXPECT_FALSE(second.hold);
      EXPECT_EQ(second.holder, "engine 1");
    }
    EXPECT_TRUE(device.take(Exclusive::kMeetingDevices, "engine 2").hold);
    EXPECT_TRUE(DeviceContext::of(kDevice - 1).take(Exclusive::kMeetingBlocks, "engine 3").hold);
  }
  const auto second = device.take(Exclusive::kMeetingBlocks, "engine 2");
  EXPECT_TRUE(second.hold);
  EXPECT_EQ(second.holder, "engine 2");
}

TEST(CudaDeviceContext, AHoldThatMovesIsGivenBackOnce) {
  DeviceContext& device = DeviceContext::of(kDevice);
  std::vector<DeviceContext::Hold> holds;
  {
    auto taken = device.take(Exclusive::kMeetingBlocks, "engine 1");
    ASSERT_TRUE(taken.hold);
    holds.push_back(*std::move(taken.hold));
  }
  EXPECT_FALSE(device.take(Exclusive::kMeetingBlocks, "engine 2").hold);
  holds.clear();
  EXPECT_TRUE(device.take(Exclusive::kMeetingBlocks, "engine 2").hold);
}

// Destroyed behind what of() has made static, as an engine of a program's may be.
std::optional<DeviceContext::Hold> held_to_the_end;

TEST(CudaDeviceContext, OutlivesTheHoldsOfTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");    // statics are made anew, this one first
  ASSERT_EQ(setenv("MALLOC_PERTURB_", "90", 1), 0);  // no mutex works in memory that was freed
  EXPECT_EXIT(
      {
        held_to_the_end.emplace(
            *DeviceContext::of(kDevice).take(Exclusive::kMeetingBlocks, "engine 1").hold);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
  ASSERT_EQ(unsetenv("MALLOC_PERTURB_"), 0);
}

// All that the losers are told is who has it, even if it is given back meanwhile.
TEST(CudaDeviceContext, WhoDoesNotGetItHearsWhoHasIt) {
  DeviceContext& device = DeviceContext::of(kDevice);
  std::atomic<int> num_unnamed = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 1000; ++k) {
        if (device.take(Exclusive::kMeetingBlocks, "a thread").holder != "a thread") ++num_unnamed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_unnamed, 0);
}

TEST(CudaDeviceContext, OneOfManyThreadsGetsIt) {
  DeviceContext& device = DeviceContext::of(kDevice);
  std::atomic<int> num_taken = 0, num_tried = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const auto taken = device.take(Exclusive::kMeetingBlocks, "a thread");
      if (taken.hold) ++num_taken;
      ++num_tried;
      while (num_tried < 8) std::this_thread::yield();  // nobody gives back before all have tried
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_taken, 1);
}

}  // namespace
}  // namespace nanovllm::cuda
