#include "backend/cpu/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/process_limits.h"
#include "base/resource_limits.h"
#include "base/signals.h"

namespace nanovllm {
namespace {

// control_: the low bits count the workers inside the loop, one bit says that it is open, the rest
// is the loop's number. Workers join by compare-and-swap on an open word, so none can enter a loop
// that its caller has closed, however late it wakes.
constexpr uint32_t kActiveMask = 0x7ff;
constexpr uint32_t kOpen = 0x800;
constexpr uint32_t kLoopUnit = 0x1000;
static_assert(ThreadPool::kMaxThreads <= kActiveMask);

// Longer than the gap between two kernels of a decode step, far shorter than a time slice.
constexpr auto kSpinTime = std::chrono::microseconds(50);
// A spinning thread reads the clock every microsecond or so; a gap like this means that it was
// taken off its core. The next loops then sleep at once and leave the core to whoever wants it.
constexpr auto kDescheduledGap = std::chrono::microseconds(200);
constexpr int kRoundsAfterDescheduling = 200;

struct Membership {
  const ThreadPool* pool = nullptr;
  int thread = 0;
};
// Which pool's task this thread is running, if any: how nested calls are told from foreign ones.
thread_local Membership current;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr uint64_t make_range(int64_t begin, int64_t end) {
  return static_cast<uint64_t>(end) << 32 | static_cast<uint64_t>(begin);
}
constexpr int64_t range_begin(uint64_t bounds) {
  return static_cast<int64_t>(bounds & 0xffffffffu);
}
constexpr int64_t range_end(uint64_t bounds) { return static_cast<int64_t>(bounds >> 32); }

}  // namespace

ThreadPool::ThreadPool(int num_threads, Progress* progress) : progress_(progress) {
  if (num_threads < 0 || num_threads > kMaxThreads) {
    throw_error(ErrorCode::kInvalidArgument,
                "num_threads is {}, but must be 0 (all usable cores) to {}", num_threads,
                kMaxThreads);
  }
  const int cpus = std::min(usable_cpus(), kMaxThreads);
  num_threads_ = num_threads == 0 ? cpus : num_threads;
  may_spin_ = num_threads_ <= cpus;
  ranges_ = std::make_unique<Range[]>(static_cast<size_t>(num_threads_));
  workers_.reserve(static_cast<size_t>(num_threads_ - 1));
  try {
    const SignalsBlocked in_workers;
    for (int i = 1; i < num_threads_; ++i) workers_.emplace_back([this, i] { worker(i); });
  } catch (const std::system_error& error) {
    const size_t started = workers_.size();
    stop_workers();
    throw_error(ErrorCode::kOutOfMemory,
                "thread {} of {} cannot be started ({}{}): use fewer threads or raise the limit",
                started + 2, num_threads_, error.code().message(), memory_limits());
  }
}

ThreadPool::~ThreadPool() { stop_workers(); }

void ThreadPool::stop_workers() {
  stop_.store(true, std::memory_order_relaxed);
  control_.fetch_add(kLoopUnit, std::memory_order_release);
  control_.notify_all();
  for (std::thread& thread : workers_) thread.join();
  workers_.clear();
}

// Spins until done() or until spinning stops being worth it; returns done().
template <typename Done>
bool ThreadPool::spin_until(Done done, int* rounds_without_spinning) {
  if (done()) return true;
  if (!may_spin_) return false;
  if (*rounds_without_spinning > 0) {
    --*rounds_without_spinning;
    return false;
  }
  const auto start = std::chrono::steady_clock::now();
  auto last = start;
  while (true) {
    for (int i = 0; i < 16; ++i) {
      if (done()) return true;
      pause();
    }
    const auto now = std::chrono::steady_clock::now();
    if (now - last > kDescheduledGap) {
      *rounds_without_spinning = kRoundsAfterDescheduling;
      return done();
    }
    if (now - start > kSpinTime) return done();
    last = now;
  }
}

template <bool from_behind>
bool ThreadPool::take(Range& range, int64_t* task) {
  uint64_t bounds = range.bounds.load(std::memory_order_relaxed);
  while (range_begin(bounds) < range_end(bounds)) {
    const int64_t begin = range_begin(bounds), end = range_end(bounds);
    const uint64_t rest = from_behind ? make_range(begin, end - 1) : make_range(begin + 1, end);
    if (range.bounds.compare_exchange_weak(bounds, rest, std::memory_order_relaxed)) {
      *task = from_behind ? end - 1 : begin;
      return true;
    }
  }
  return false;
}

void ThreadPool::run_task(int64_t task, int thread) {
  try {
    fn_(context_, task, thread);
  } catch (...) {
    if (!failed_.exchange(true)) failure_ = std::current_exception();
  }
  advance(thread);
}

void ThreadPool::work(int thread) {
  const Membership outer = current;
  current = {this, thread};
  int64_t task;
  while (take<false>(ranges_[thread], &task)) run_task(task, thread);
  for (int i = 1; i < num_threads_; ++i) {
    Range& victim = ranges_[(thread + i) % num_threads_];
    while (take<true>(victim, &task)) run_task(task, thread);
  }
  current = outer;
}

void ThreadPool::worker(int thread) {
  int rounds_without_spinning = 0;
  uint32_t seen = 0;  // a loop may already be open when this thread starts
  while (true) {
    uint32_t word = control_.load(std::memory_order_acquire);
    // Only after the word: one that stop_workers() has changed brings its stop_ along, and waiting
    // for another change of that one would never end.
    if (stop_.load(std::memory_order_relaxed)) return;
    const bool is_new = (word & ~kActiveMask) != (seen & ~kActiveMask);
    if ((word & kOpen) == 0 || !is_new) {
      const auto changed = [&] {
        const uint32_t now = control_.load(std::memory_order_acquire);
        return (now & ~kActiveMask) != (word & ~kActiveMask);
      };
      if (!spin_until(changed, &rounds_without_spinning)) {
        control_.wait(word, std::memory_order_acquire);
      }
      continue;
    }
    if (!control_.compare_exchange_weak(word, word + 1, std::memory_order_acquire)) continue;
    seen = word;
    work(thread);
    const uint32_t left = control_.fetch_sub(1, std::memory_order_acq_rel) - 1;
    if ((left & (kActiveMask | kOpen)) == 0) {
      all_left_.store(1);  // sequentially consistent: before the look for those who wait
      all_left_.notify_one();
    }
  }
}

void ThreadPool::run_inline(int64_t num_tasks, TaskFn fn, void* context, int thread) const {
  for (int64_t task = 0; task < num_tasks; ++task) {
    fn(context, task, thread);
    advance(thread);
  }
}

void ThreadPool::run(int64_t num_tasks, TaskFn fn, void* context) {
  NANOVLLM_CHECK(num_tasks <= INT32_MAX);
  if (current.pool == this) return run_inline(num_tasks, fn, context, current.thread);
  if (num_threads_ == 1 || num_tasks <= 1 || busy_.exchange(true, std::memory_order_acquire)) {
    return run_inline(num_tasks, fn, context, 0);
  }
  fn_ = fn;
  context_ = context;
  for (int64_t i = 0; i < num_threads_; ++i) {
    const int64_t begin = num_tasks * i / num_threads_;
    const int64_t end = num_tasks * (i + 1) / num_threads_;
    ranges_[i].bounds.store(make_range(begin, end), std::memory_order_relaxed);
  }
  all_left_.store(0, std::memory_order_relaxed);
  const uint32_t loop = control_.load(std::memory_order_relaxed) / kLoopUnit + 1;
  control_.store(loop * kLoopUnit | kOpen);  // sequentially consistent, as all_left_ below
  control_.notify_all();
  work(0);
  const uint32_t closed = control_.fetch_and(~kOpen, std::memory_order_acq_rel);
  if ((closed & kActiveMask) != 0) {
    const auto all_left = [&] { return all_left_.load(std::memory_order_acquire) != 0; };
    if (!spin_until(all_left, &caller_rounds_without_spinning_)) {
      all_left_.wait(0, std::memory_order_acquire);
    }
  }
  const bool failed = failed_.exchange(false);
  const std::exception_ptr failure = failed ? std::exchange(failure_, nullptr) : nullptr;
  busy_.store(false, std::memory_order_release);
  if (failed) std::rethrow_exception(failure);
}

}  // namespace nanovllm
