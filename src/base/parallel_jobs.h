// Work of very different sizes on several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace nanovllm {

struct Job {
  int64_t size = 0;  // in any unit
  std::function<void()> run;
};

// Runs all jobs, the largest first so that no thread ends with a long one alone, on at most
// max_threads threads, of which the caller's is one; it calls `beside` first. Throws what the first
// failing job threw, after the threads have ended.
void run_in_parallel(std::vector<Job> jobs, int max_threads, const std::function<void()>& beside);

}  // namespace nanovllm
