// Decoding of coded weights (coded_weights.h) with AVX2, for files compiled for it; everything is
// in an unnamed namespace (see linear_loops.h).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/linear/coded_weights.h"

namespace nanovllm {
namespace {

inline __m256i swap_bytes(__m256i words) {
  const __m256i swapped = _mm256_setr_epi8(1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14, 1,
                                           0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  return _mm256_shuffle_epi8(words, swapped);
}

// A panel being read from its first unit on, in two parts: columns 0 to 15 and columns 16 to 31.
class CodedPanel {
 public:
  CodedPanel() = default;
  CodedPanel(const char* panel, const WeightPatch* patches)
      : unit_(panel + kCodeTableBytes), patch_(patches) {
    const auto* words = reinterpret_cast<const __m128i*>(panel);
    const __m128i low = _mm_srli_epi16(_mm_load_si128(words), 7);
    const __m128i high = _mm_srli_epi16(_mm_load_si128(words + 1), 7);
    exponents_ = _mm256_broadcastsi128_si256(_mm_packus_epi16(low, high));
  }

  const char* unit() const { return unit_; }

  // A part's vectors of unit `index`, the parts and units in order: w[0] and w[1] are its first
  // step.
  inline __attribute__((always_inline)) void next(uint32_t index, int part, __m256i (&w)[4]) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      __m256i first = load(i * 32), second = load(64 + i * 32), codes = load(128 + i * 32);
      if (part == 1) {
        first = swap_bytes(first);
        second = swap_bytes(second);
        codes = _mm256_srli_epi16(codes, 4);
      }
      // Of each word, the low byte is for the first step and the high byte for the second.
      const __m256i exponents =
          _mm256_shuffle_epi8(exponents_, _mm256_and_si256(codes, _mm256_set1_epi8(15)));
      w[i] = join(first, _mm256_maddubs_epi16(exponents, _mm256_set1_epi16(0x0080)));
      w[2 + i] = join(second, _mm256_maddubs_epi16(exponents, _mm256_set1_epi16(-0x8000)));
    }
    if (__builtin_expect(patch_->unit == index, 0)) {
      alignas(32) uint16_t words[kUnitWeights / 2];
      for (int i = 0; i < 4; ++i) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(words + i * 16), w[i]);
      }
      const WeightPatch* behind = apply(patch_, index, part, words);
      if (part == 1) patch_ = behind;
      for (int i = 0; i < 4; ++i) {
        w[i] = _mm256_load_si256(reinterpret_cast<const __m256i*>(words + i * 16));
      }
    }
    if (part == 1) unit_ += kUnitBytes;
  }

 private:
  inline __attribute__((always_inline)) __m256i load(int offset) const {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(unit_ + offset));
  }
  // The exponents come as negative numbers, exponent times -128: a product of bytes moves each to
  // its place, and takes a signed factor only.
  static __m256i join(__m256i rest, __m256i exponents) {
    const __m256i mask = _mm256_set1_epi16(kSignAndMantissa);
    return _mm256_sub_epi16(_mm256_and_si256(rest, mask), exponents);
  }
  // Static, so that a panel's pointers may live in registers.
  __attribute__((noinline)) static const WeightPatch* apply(const WeightPatch* patch,
                                                            uint32_t index, int part,
                                                            uint16_t* words) {
    for (; patch->unit == index; ++patch) {
      if (patch->position / 32 % 2 == part) {
        words[patch->position / 64 * 32 + patch->position % 32] = patch->bits;
      }
    }
    return patch;
  }

  __m256i exponents_;  // the table as bytes
  const char* unit_;
  const WeightPatch* patch_;
};

}  // namespace
}  // namespace nanovllm
