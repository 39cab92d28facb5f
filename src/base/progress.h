// How far work has come, for another thread that watches whether it goes on.
#pragma once

#include <atomic>
#include <cstdint>

namespace nanovllm {

// A count of pieces of work that were done, whatever their size. Any thread may call any method.
class Progress {
 public:
  void advance() { count_.fetch_add(1, std::memory_order_relaxed); }
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> count_{0};
};

}  // namespace nanovllm
