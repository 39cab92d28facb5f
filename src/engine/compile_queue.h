// A thread for requests whose grammars are to be compiled, so that nobody else waits for that.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "nanovllm/prepare.h"

namespace nanovllm {

// One request behind the other, in the order of their coming.
class CompileQueue {
 public:
  // Is called on the queue's thread, with the number that the request was added by.
  using Work = std::function<void(uint64_t ticket, AddRequest&& request)>;

  explicit CompileQueue(Work work);
  // The work that has begun ends first; what waits is dropped.
  ~CompileQueue();
  CompileQueue(const CompileQueue&) = delete;
  CompileQueue& operator=(const CompileQueue&) = delete;

  // Any thread may call these.
  void add(uint64_t ticket, AddRequest request);
  // Nobody wants it any more; ignored once its work has begun.
  void drop(uint64_t ticket) noexcept;

 private:
  void run();

  const Work work_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::pair<uint64_t, AddRequest>> waiting_;
  bool ends_ = false;

  std::thread thread_;
};

}  // namespace nanovllm
