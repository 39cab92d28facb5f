#include "engine/mask_pool.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/signals.h"

namespace nanovllm {

MaskPool::~MaskPool() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wakes_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskPool::start() {
  was_started_ = true;
  const auto num_cpus = static_cast<int>(std::thread::hardware_concurrency());
  const SignalsBlocked in_threads;
  try {
    for (int i = 1; i < std::min(kMaxThreads, num_cpus); ++i) {
      threads_.emplace_back([this] { work(); });
    }
  } catch (const std::system_error&) {
    // The system gives no more threads: those there are do it.
  }
}

void MaskPool::run(int count, const std::function<void(int)>& task) {
  if (count <= kMostAlone) {
    for (int i = 0; i < count; ++i) task(i);
    return;
  }
  if (!was_started_) start();
  {
    const std::lock_guard lock(mutex_);
    task_ = &task;
    count_ = count;
    next_ = 0;
    ++round_;
  }
  wakes_.notify_all();
  take_tasks(task);
  // Who wakes only now has nothing left to do, and is not waited for.
  std::unique_lock lock(mutex_);
  task_ = nullptr;
  rests_.wait(lock, [&] { return num_working_ == 0; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void MaskPool::work() {
  pthread_setname_np(pthread_self(), "masks");
  std::unique_lock lock(mutex_);
  for (uint64_t last_round = 0;;) {
    wakes_.wait(lock, [&] { return ends_ || (task_ != nullptr && round_ != last_round); });
    if (ends_) return;
    last_round = round_;
    const auto& task = *task_;
    ++num_working_;
    lock.unlock();
    take_tasks(task);
    lock.lock();
    if (--num_working_ == 0) rests_.notify_one();
  }
}

void MaskPool::take_tasks(const std::function<void(int)>& task) {
  try {
    for (int i = next_++; i < count_; i = next_++) task(i);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
    next_ = count_;
  }
}

}  // namespace nanovllm
