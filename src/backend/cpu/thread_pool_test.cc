#include "backend/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <new>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"

namespace nanovllm {
namespace {

class ThreadPoolTest : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, EveryTaskRunsOnceAndItsWritesAreVisible) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.num_threads(), GetParam());
  for (int64_t n : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<int> runs(static_cast<size_t>(n), 0);
    pool.parallel_for(n, [&](int64_t task, int) { ++runs[task]; });
    for (const int r : runs) ASSERT_EQ(r, 1);
  }
}

TEST_P(ThreadPoolTest, ProgressAdvancesWithinALoopAndStandsStillWhereATaskDoes) {
  Progress progress;
  ThreadPool pool(GetParam(), &progress);
  pool.parallel_for(0, [](int64_t, int) {});
  EXPECT_EQ(progress.count(), 0u);
  // Tasks take some time, so that no thread takes all of them before others come.
  const auto take_time = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  std::atomic<bool> hangs = true;
  std::thread caller([&] {
    pool.parallel_for(100, [&](int64_t task, int) {
      take_time();
      if (task == 99) hangs.wait(true);
    });
  });
  uint64_t count = 0;
  for (int num_still = 0; num_still < 20; ++num_still) {  // which is 100 ms
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (std::exchange(count, progress.count()) != count) num_still = 0;
  }
  EXPECT_GT(count, 0u);
  EXPECT_LE(count, 99u);
  if (GetParam() == 1) {
    EXPECT_EQ(count, 99u);
  }
  hangs = false;
  hangs.notify_all();
  caller.join();
  pool.parallel_for(100, [&](int64_t, int) { take_time(); });
  EXPECT_GT(progress.count(), count);
}

TEST_P(ThreadPoolTest, WhatATaskThrowsReachesTheCallerAndThePoolGoesOn) {
  ThreadPool pool(GetParam());
  for (const int64_t n : {1, 2, 64}) {
    for (int64_t thrower = 0; thrower < n; thrower += 9) {
      std::vector<int> runs(static_cast<size_t>(n), 0);
      const auto task = [&](int64_t i, int) {
        ++runs[i];
        if (i == thrower) throw std::bad_alloc();
      };
      EXPECT_THROW(pool.parallel_for(n, task), std::bad_alloc);
      EXPECT_EQ(runs[thrower], 1);
      std::ranges::fill(runs, 0);
      pool.parallel_for(n, [&](int64_t i, int) { ++runs[i]; });
      EXPECT_EQ(std::ranges::count(runs, 1), n);
    }
  }
}

TEST_P(ThreadPoolTest, ANestedLoopThrowsThroughItsTask) {
  ThreadPool pool(GetParam());
  const auto inner = [](int64_t i, int) {
    if (i == 3) throw std::bad_alloc();
  };
  EXPECT_THROW(pool.parallel_for(8, [&](int64_t, int) { pool.parallel_for(8, inner); }),
               std::bad_alloc);
}

TEST_P(ThreadPoolTest, TasksThatRunAtOnceHaveDifferentThreadIndices) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<int>> inside(static_cast<size_t>(GetParam()));
  std::atomic<bool> clash{false};
  for (int round = 0; round < 50; ++round) {
    pool.parallel_for(64, [&](int64_t, int thread) {
      if (inside[thread].fetch_add(1) != 0) clash = true;
      inside[thread].fetch_sub(1);
    });
  }
  EXPECT_FALSE(clash);
}

TEST_P(ThreadPoolTest, ManyShortLoopsWithPausesBetweenThem) {
  ThreadPool pool(GetParam());
  int64_t sum = 0;
  std::vector<int64_t> values(16);
  for (int round = 0; round < 3000; ++round) {
    pool.parallel_for(16, [&](int64_t task, int) { values[task] = task + round; });
    sum += std::accumulate(values.begin(), values.end(), int64_t{0});
    // Long enough now and then for the threads to fall asleep.
    if (round % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(sum, int64_t{3000} * 120 + int64_t{16} * (2999 * 3000 / 2));
}

TEST_P(ThreadPoolTest, NestedLoopsRunInsideTheirTaskUnderItsThreadIndex) {
  ThreadPool pool(GetParam());
  std::vector<int> runs(8 * 8, 0);
  std::atomic<bool> moved{false};
  pool.parallel_for(8, [&](int64_t outer, int outer_thread) {
    pool.parallel_for(8, [&](int64_t inner, int inner_thread) {
      ++runs[outer * 8 + inner];
      if (inner_thread != outer_thread) moved = true;
    });
  });
  for (const int r : runs) EXPECT_EQ(r, 1);
  EXPECT_FALSE(moved);
}

TEST_P(ThreadPoolTest, SeveralThreadsMayCallAtOnce) {
  ThreadPool pool(GetParam());
  std::atomic<int64_t> total{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        std::vector<int> runs(20, 0);
        pool.parallel_for(20, [&](int64_t task, int) { ++runs[task]; });
        total += std::accumulate(runs.begin(), runs.end(), 0);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(total, 4 * 300 * 20);
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 3, 5, 8),
                         testing::PrintToStringParamName());

TEST(ThreadPool, TwoThreadsWorkAtOnce) {
  ThreadPool pool(2);
  std::atomic<int> arrived{0};
  // Each task waits for the other: one thread alone would never come back.
  pool.parallel_for(2, [&](int64_t, int) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 2);
}

TEST(ThreadPool, WorkersTakeNoSignalsButThoseOfTheirFaults) {
  ThreadPool pool(2);
  std::atomic<int> arrived{0};
  pool.parallel_for(2, [&](int64_t, int thread) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
    sigset_t blocked;
    ASSERT_EQ(pthread_sigmask(SIG_BLOCK, nullptr, &blocked), 0);
    EXPECT_EQ(sigismember(&blocked, SIGINT), thread == 0 ? 0 : 1);
    EXPECT_EQ(sigismember(&blocked, SIGTSTP), thread == 0 ? 0 : 1);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT}) {
      EXPECT_EQ(sigismember(&blocked, fault), 0) << fault;
    }
  });
}

TEST(ThreadPool, AFreeThreadTakesOverTheTasksOfABusyOne) {
  ThreadPool pool(2);
  constexpr int kTasks = 100;
  std::atomic<int> others{0};
  // Task 0 ends only when all others are done, half of which were dealt to its own thread.
  pool.parallel_for(kTasks, [&](int64_t task, int) {
    if (task != 0) {
      ++others;
      return;
    }
    while (others < kTasks - 1) std::this_thread::yield();
  });
  EXPECT_EQ(others, kTasks - 1);
}

TEST(ThreadPool, DestructionWithoutUseAndWhileAsleep) {
  for (int i = 0; i < 20; ++i) ThreadPool unused(4);
  ThreadPool pool(3);
  pool.parallel_for(10, [](int64_t, int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

TEST(ThreadPool, RefusesImpossibleNumbersOfThreads) {
  EXPECT_THROW(ThreadPool(-1), Error);
  EXPECT_THROW(ThreadPool(ThreadPool::kMaxThreads + 1), Error);
  EXPECT_GE(ThreadPool(0).num_threads(), 1);
}

}  // namespace
}  // namespace nanovllm
