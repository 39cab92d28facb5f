// A persistent pool of threads for loops whose iterations are independent.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/progress.h"

namespace nanovllm {

// The thread that calls parallel_for works along as thread 0; a pool of one thread starts none.
//
// Tasks 0 .. n-1 are dealt out as one contiguous range a thread, so that each thread walks through
// memory in order and a task goes to the same thread every time; who is done with his own range
// takes tasks from the far end of another's. A thread that the operating system keeps off its core
// therefore delays the loop by one task at most, and one that wakes too late for it is not waited
// for.
//
// Between loops the threads spin for some tens of microseconds and then sleep. They do not spin at
// all where they are more than the cores this process may use, and stop doing so for a while when
// they notice that another process wants their core.
//
// Which thread runs a task is not deterministic.
class ThreadPool {
 public:
  static constexpr int kMaxThreads = 1024;

  // num_threads 0 = usable_cpus(). `progress`, or null, advances with the loops and must live as
  // long as the pool. Throws Error(kInvalidArgument) outside 0..kMaxThreads and
  // Error(kOutOfMemory) when the system gives no more threads.
  explicit ThreadPool(int num_threads = 0, Progress* progress = nullptr);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // A task is done, or a part of a long one. Only thread 0, which is in every loop, is counted:
  // others would wait for each other's cache line. Where a task never ends, thread 0 runs out of
  // the others, and the count stands still.
  void advance(int thread) const {
    if (thread == 0 && progress_ != nullptr) progress_->advance();
  }

  // Calls fn(task, thread) for each task and returns when all are done; their writes are visible
  // then. When one throws, others may not be run; the first exception is thrown on when none runs
  // any more. `thread` in 0 .. num_threads()-1 is the index of the thread that runs the task, for
  // scratch memory: no two tasks run at once with the same one, as long as a single thread calls
  // this. May be called by several threads at once and by tasks: a call that finds the pool busy
  // runs its tasks itself, in order (a nested one under its task's thread index, another thread's
  // under index 0).
  template <typename F>
  void parallel_for(int64_t num_tasks, F&& fn) {
    using Fn = std::remove_reference_t<F>;
    run(
        num_tasks,
        [](void* context, int64_t task, int thread) { (*static_cast<Fn*>(context))(task, thread); },
        const_cast<std::remove_const_t<Fn>*>(&fn));
  }

 private:
  using TaskFn = void (*)(void* context, int64_t task, int thread);

  // The tasks a thread has yet to run: begin in the low half, end in the high half.
  struct alignas(64) Range {
    std::atomic<uint64_t> bounds{0};
  };

  void run(int64_t num_tasks, TaskFn fn, void* context);
  void run_inline(int64_t num_tasks, TaskFn fn, void* context, int thread) const;
  void stop_workers();
  void work(int thread);
  void run_task(int64_t task, int thread);
  template <bool from_behind>
  bool take(Range& range, int64_t* task);
  void worker(int thread);
  template <typename Done>
  bool spin_until(Done done, int* rounds_without_spinning);

  int num_threads_ = 1;
  Progress* const progress_;
  bool may_spin_ = false;
  std::unique_ptr<Range[]> ranges_;
  std::vector<std::thread> workers_;

  // The loop in progress; written by its caller while no worker takes part.
  TaskFn fn_ = nullptr;
  void* context_ = nullptr;
  int caller_rounds_without_spinning_ = 0;
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;  // of the task that set failed_

  std::atomic<bool> busy_{false};
  std::atomic<bool> stop_{false};
  // Loop number, whether it is open for workers to join, and how many have joined (see .cc).
  alignas(64) std::atomic<uint32_t> control_{0};
  // Set by the worker that leaves a closed loop last.
  alignas(64) std::atomic<uint32_t> all_left_{0};
};

}  // namespace nanovllm
