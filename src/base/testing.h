// What tests of every layer share.
#pragma once

#include <cstddef>
#include <ctime>
#include <filesystem>
#include <string>

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

// Paths below the folder of the build, where the program lies, and below that of the project. Both
// may have been taken elsewhere together.
inline std::string build_path(const std::string& path) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / path;
}
inline std::string source_path(const std::string& path) {
  const std::filesystem::path from_build = NANOVLLM_SOURCE_FROM_BUILD;
  return std::filesystem::path(build_path(from_build / path)).lexically_normal();
}

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
