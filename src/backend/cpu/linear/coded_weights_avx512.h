// Decoding of coded weights (coded_weights.h) into the vectors of a plain panel. For files compiled
// for AVX-512 or better only; everything is in an unnamed namespace (see linear_loops.h).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/linear/coded_weights.h"

namespace nanovllm {
namespace {

inline __m512i swap_bytes(__m512i words) {
  const __m512i swapped = _mm512_set4_epi32(0x0e0f0c0d, 0x0a0b0809, 0x06070405, 0x02030001);
  return _mm512_shuffle_epi8(words, swapped);
}

// A panel being read from its first unit on.
class CodedPanel {
 public:
  CodedPanel() = default;
  CodedPanel(const char* panel, const WeightPatch* patches)
      : table_(panel), unit_(panel + kCodeTableBytes), patch_(patches) {}

  const char* unit() const { return unit_; }

  // The vectors of unit `index`, which is the next, in one part; w[0] and w[1] are its first step.
  inline __attribute__((always_inline)) void next(uint32_t index, int /*part*/, __m512i (&w)[4]) {
    const __m512i table = _mm512_load_si512(table_);
    const __m512i codes = _mm512_load_si512(unit_ + 128);
    const __m512i first = _mm512_load_si512(unit_), second = _mm512_load_si512(unit_ + 64);
    // The look-up takes the lowest 5 bits of a word; the fifth changes nothing, since the table
    // is there twice.
    w[0] = join(_mm512_permutexvar_epi16(codes, table), first);
    w[1] = join(_mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4), table), swap_bytes(first));
    w[2] = join(_mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 8), table), second);
    w[3] = join(_mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 12), table), swap_bytes(second));
    for (; __builtin_expect(patch_->unit == index, 0); ++patch_) apply(*patch_, w);
    unit_ += kUnitBytes;
  }

 private:
  static __m512i join(__m512i exponents, __m512i rest) {
    // exponents | (rest & mask)
    return _mm512_ternarylogic_epi32(exponents, rest, _mm512_set1_epi16(kSignAndMantissa), 0xf8);
  }
  static inline __attribute__((always_inline)) void apply(const WeightPatch& patch,
                                                          __m512i (&w)[4]) {
    const __m512i bits = _mm512_set1_epi16(static_cast<int16_t>(patch.bits));
    const __mmask32 word = __mmask32{1} << patch.position % 32;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      w[i] = _mm512_mask_mov_epi16(w[i], patch.position / 32 == i ? word : __mmask32{0}, bits);
    }
  }

  const char* table_;
  const char* unit_;
  const WeightPatch* patch_;
};

}  // namespace
}  // namespace nanovllm
