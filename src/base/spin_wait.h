// Waiting for another thread that is expected within microseconds.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace nanovllm {

// Returns the value of `word` once it is another than `old`: looks again and again for `spin_time`,
// then sleeps until notified. Sees what the changer wrote before a release.
inline uint32_t wait_for_change(const std::atomic<uint32_t>& word, uint32_t old,
                                std::chrono::microseconds spin_time) {
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 16; ++i) {
      const uint32_t now = word.load(std::memory_order_acquire);
      if (now != old) return now;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("yield");
#endif
    }
  } while (std::chrono::steady_clock::now() - start < spin_time);
  word.wait(old, std::memory_order_acquire);
  return word.load(std::memory_order_acquire);
}

}  // namespace nanovllm
