#include "base/rank_barrier.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "nanovllm/error.h"

namespace nanovllm {
namespace {

TEST(RankBarrier, WhatIsWrittenBeforeIsSeenAfter) {
  for (const auto spin_time : {std::chrono::microseconds(0), std::chrono::microseconds(50)}) {
    constexpr int kRanks = 4, kRounds = 500;
    RankBarrier barrier(kRanks, spin_time);
    std::vector<int> values(kRanks);  // no atomics: the barrier orders them
    std::vector<int> wrong(kRanks);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back([&, rank] {
        for (int round = 1; round <= kRounds; ++round) {
          values[rank] = round;
          barrier.arrive_and_wait();
          for (const int value : values) wrong[rank] += value != round;
          barrier.arrive_and_wait();
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    EXPECT_EQ(wrong, std::vector<int>(kRanks));
  }
}

TEST(RankBarrier, AbortReleasesThoseWhoWaitAndThoseWhoCome) {
  RankBarrier barrier(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&] { EXPECT_THROW(barrier.arrive_and_wait(), Error); });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(barrier.is_aborted());
  barrier.abort();
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THROW(barrier.arrive_and_wait(), Error);
}

}  // namespace
}  // namespace nanovllm
