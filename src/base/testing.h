// What tests of every layer share.
#pragma once

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

}  // namespace nanovllm::test
