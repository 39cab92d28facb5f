// Where the ranks of a tensor-parallel group, threads of one process, wait for each other.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace nanovllm {

// A barrier that does not hang when a rank dies: whoever notices calls abort().
class RankBarrier {
 public:
  // Waiting ranks spin for `spin_time` before they sleep.
  explicit RankBarrier(int num_ranks, std::chrono::microseconds spin_time = {})
      : num_ranks_(static_cast<uint32_t>(num_ranks)), spin_time_(spin_time) {}

  // Returns when all ranks have arrived; what each wrote before is visible to all then. Throws
  // Error(kInternal) when the barrier was or is aborted.
  void arrive_and_wait();
  // Releases all who wait, now and later. Any thread may call it.
  void abort();
  bool is_aborted() const { return aborted_.load(std::memory_order_acquire); }
  // Throws Error(kInternal) when the barrier was aborted.
  void check() const;

 private:
  const uint32_t num_ranks_;
  const std::chrono::microseconds spin_time_;
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> round_{0};
  std::atomic<bool> aborted_{false};
};

}  // namespace nanovllm
