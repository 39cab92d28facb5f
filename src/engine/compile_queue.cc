#include "engine/compile_queue.h"

#include <pthread.h>

#include "base/signals.h"

namespace nanovllm {

CompileQueue::CompileQueue(Work work) : work_(std::move(work)) {
  const SignalsBlocked in_thread;
  thread_ = std::thread([this] { run(); });
}

CompileQueue::~CompileQueue() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void CompileQueue::add(uint64_t ticket, AddRequest request) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.emplace_back(ticket, std::move(request));
  }
  changed_.notify_one();
}

void CompileQueue::drop(uint64_t ticket) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(waiting_, [&](const auto& one) { return one.first == ticket; });
}

void CompileQueue::run() {
  pthread_setname_np(pthread_self(), "grammars");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !waiting_.empty(); });
    if (ends_) return;
    auto [ticket, request] = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    work_(ticket, std::move(request));
    lock.lock();
  }
}

}  // namespace nanovllm
