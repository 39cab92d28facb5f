// Decoding of codes of 8 bits (code_panels.h) with look-ups in 128 bytes, of others as with
// AVX-512. For files compiled for AVX-512-VBMI or better only; everything is in an unnamed
// namespace (see linear_loops.h).
#pragma once

#include "backend/cpu/linear/codes_avx512.h"

namespace nanovllm {
namespace {

// value 2^exponent as bfloat16, which holds it.
constexpr uint32_t bfloat16_of(uint32_t value, int exponent) {
  if (value == 0) return 0;
  for (; value < 128; value *= 2) --exponent;
  return static_cast<uint32_t>(127 + 7 + exponent) << 7 | (value & 127);
}

// Lower and upper bytes of numbers as bfloat16.
struct ByteTables {
  alignas(64) uint8_t low[128];
  alignas(64) uint8_t high[128];
};

// Of 0 to 128. The lower byte is looked up by the lowest 7 bits, since those of 0 and 128 are
// equal; the upper one by the number without its last bit, which changes it between 0 and 1 only: 1
// is here, and 0 has to be put in.
constexpr ByteTables kIntegers = [] {
  ByteTables tables = {};
  for (uint32_t i = 0; i < 128; ++i) {
    tables.low[i] = static_cast<uint8_t>(bfloat16_of(i, 0));
    tables.high[i] = static_cast<uint8_t>(bfloat16_of(i == 0 ? 1 : 2 * i, 0) >> 8);
  }
  return tables;
}();

// By exponent and mantissa.
constexpr ByteTables kE4M3Magnitudes = [] {
  ByteTables tables = {};
  for (uint32_t i = 0; i < 128; ++i) {
    const uint32_t exponent = i >> 3, mantissa = i & 7;
    const uint32_t bits = exponent == 0
                              ? bfloat16_of(mantissa, -9)
                              : bfloat16_of(8 + mantissa, static_cast<int>(exponent) - 10);
    tables.low[i] = static_cast<uint8_t>(bits);
    tables.high[i] = static_cast<uint8_t>(bits >> 8);
  }
  return tables;
}();

// Bytes 2i of two vectors side by side, and bytes 2i + 1.
struct Interleaving {
  alignas(64) uint8_t even[64];
  alignas(64) uint8_t odd[64];
};
constexpr Interleaving kInterleaving = [] {
  Interleaving index = {};
  for (uint32_t i = 0; i < 64; ++i) {
    index.even[i] = static_cast<uint8_t>(i / 2 * 2 + i % 2 * 64);
    index.odd[i] = static_cast<uint8_t>(index.even[i] + 1);
  }
  return index;
}();

struct CodesAvx512Vbmi : CodesAvx512 {
  template <CodeKind kind, int part>
  static inline __attribute__((always_inline)) void decode(const char* unit, const Table& table,
                                                           __m512i (&w)[4]) {
    if constexpr (kind == CodeKind::kInt8 || kind == CodeKind::kE4M3) {
      pair<kind>(_mm512_load_si512(unit + 2 * part * 64), w);
      pair<kind>(_mm512_load_si512(unit + (2 * part + 1) * 64), w + 2);
    } else {
      CodesAvx512::decode<kind, part>(unit, table, w);
    }
  }

 private:
  template <CodeKind kind>
  static inline __attribute__((always_inline)) void pair(__m512i codes, __m512i* w) {
    __m512i low, high;
    if constexpr (kind == CodeKind::kInt8) {
      const __m512i magnitudes = _mm512_abs_epi8(codes);
      low = look_up(magnitudes, kIntegers.low);
      high = _mm512_maskz_permutex2var_epi8(
          _mm512_test_epi8_mask(codes, codes), _mm512_load_si512(kIntegers.high),
          _mm512_srli_epi16(magnitudes, 1), _mm512_load_si512(kIntegers.high + 64));
    } else {
      low = look_up(codes, kE4M3Magnitudes.low);
      high = look_up(codes, kE4M3Magnitudes.high);
    }
    // high | (codes & sign)
    high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(-128), 0xf8);
    w[0] = _mm512_permutex2var_epi8(low, _mm512_load_si512(kInterleaving.even), high);
    w[1] = _mm512_permutex2var_epi8(low, _mm512_load_si512(kInterleaving.odd), high);
  }
  // By the lowest 7 bits of each byte.
  static __m512i look_up(__m512i index, const uint8_t (&table)[128]) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), index, _mm512_load_si512(table + 64));
  }
};

}  // namespace
}  // namespace nanovllm
