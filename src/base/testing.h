// What tests of every layer share.
#pragma once

#include <cstddef>
#include <ctime>

namespace nanovllm::test {

#ifdef __SANITIZE_THREAD__
inline constexpr bool kUnderThreadSanitizer = true;
#else
inline constexpr bool kUnderThreadSanitizer = false;
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kUnderSanitizer = true;
#else
inline constexpr bool kUnderSanitizer = false;
#endif

// A size or a number of repetitions. A sanitizer makes loads and stores 5 to 50 times slower and
// looks at which there are, not at how often: it gets the reduced one, which must reach the same
// code.
template <typename T>
constexpr T full_or_reduced(T full, T reduced) {
  return kUnderSanitizer ? reduced : full;
}

// CPU time of this thread that `work` takes, seconds.
template <typename Work>
double cpu_seconds(const Work& work) {
  const auto now = [] {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double begin = now();
  work();
  return now() - begin;
}

// Whether work(size), done on this thread, takes a time that is linear in the size: eight times the
// size must take less than 24 times as long, where quadratic time would be 64 times.
template <typename Work>
bool takes_linear_time(size_t size, const Work& work) {
  work(size);  // buffers and caches
  const double once = cpu_seconds([&] { work(size); });
  return cpu_seconds([&] { work(8 * size); }) < 24 * once + 0.01;
}

}  // namespace nanovllm::test
