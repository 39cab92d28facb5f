#include "base/parallel_jobs.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/signals.h"

namespace nanovllm {

void run_in_parallel(std::vector<Job> jobs, int max_threads, const std::function<void()>& beside) {
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const Job& a, const Job& b) { return a.size > b.size; });
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  const auto guarded = [&](const auto& call) {
    try {
      call();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = jobs.size();
    }
  };
  const auto work = [&] {
    for (size_t i = next++; i < jobs.size(); i = next++) guarded(jobs[i].run);
  };
  // More threads than this only wait for memory.
  constexpr size_t kMaxThreads = 16;
  const size_t num_threads = std::min({jobs.size(), static_cast<size_t>(max_threads), kMaxThreads});
  std::vector<std::thread> threads;
  try {
    const SignalsBlocked in_threads;
    for (size_t i = 1; i < num_threads; ++i) threads.emplace_back(work);
  } catch (const std::system_error&) {
    // The system gives no more threads: those there are do it.
  }
  guarded(beside);
  work();
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace nanovllm
