// The threads that make the masks of a step, where they are many.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace nanovllm {

// Starts its threads when they are first needed. One thread calls run().
class MaskPool {
 public:
  // The caller's included.
  static constexpr int kMaxThreads = 4;
  // As many masks as the caller makes alone: most are known already and take a microsecond or two,
  // less than a thread takes to wake.
  static constexpr int kMostAlone = 16;

  MaskPool() = default;
  ~MaskPool();
  MaskPool(const MaskPool&) = delete;
  MaskPool& operator=(const MaskPool&) = delete;

  // Calls task(i) for each i in [0, count) and returns when all are done. Throws what the first
  // failing one threw.
  void run(int count, const std::function<void(int)>& task);
  int num_threads() const { return 1 + static_cast<int>(threads_.size()); }

 private:
  void start();
  void work();
  void take_tasks(const std::function<void(int)>& task);

  std::vector<std::thread> threads_;
  bool was_started_ = false;
  std::mutex mutex_;
  std::condition_variable wakes_, rests_;
  // Under the lock: null = nothing to do, or too late to join in.
  const std::function<void(int)>* task_ = nullptr;
  uint64_t round_ = 0;
  int num_working_ = 0;  // of the threads
  bool ends_ = false;
  std::exception_ptr failure_;
  int count_ = 0;
  std::atomic<int> next_ = 0;
};

}  // namespace nanovllm
