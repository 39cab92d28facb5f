// Decoding of codes (code_panels.h) into bfloat16. For files compiled for AVX-512 or better only;
// everything is in an unnamed namespace (see linear_loops.h).
#pragma once

#include <immintrin.h>

#include "backend/cpu/linear/code_index.h"

namespace nanovllm {
namespace {

struct CodesAvx512 {
  static constexpr bool kDecodesAlong = true;
  using Words = __m512i;
  struct Table {
    __m512i low, high;  // values of codes from 0 on, from 32 on
  };
  static Table load_table(const uint16_t* values) {
    return {_mm512_loadu_si512(values), _mm512_loadu_si512(values + 32)};
  }

  static __m512 load_half(const char* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static __m512 load_bf16(const char* p) {
    const __m512i words =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
  }
  static __m512 load_int8(const char* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static __m512 broadcast(float x) { return _mm512_set1_ps(x); }
  static __m512 multiply(__m512 v, __m512 w) { return _mm512_mul_ps(v, w); }
  static __m512 divide(__m512 v, __m512 w) { return _mm512_div_ps(v, w); }
  static __m512 fused_multiply_add(__m512 v, __m512 w, __m512 u) {
    return _mm512_fmadd_ps(v, w, u);
  }

  static Words load_words(const char* p) { return _mm512_load_si512(p); }
  static __m512 subtract(__m512 v, __m512 w) { return _mm512_sub_ps(v, w); }
  // A product that no compiler fuses with an addition.
  static __m512 rounded_product(__m512 v, __m512 w) {
    return _mm512_mul_round_ps(v, w, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  // Pairs of bfloat16 as two vectors, and back, rounded to nearest even.
  static __m512 even(Words pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
  static __m512 odd(Words pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000)));
  }
  static Words rounded_pairs(__m512 even, __m512 odd) { return join(rounded(even), rounded(odd)); }

  template <CodeKind kind, int part>
  static inline __attribute__((always_inline)) void decode(const char* unit, const Table& table,
                                                           __m512i (&w)[4]) {
    if constexpr (kind == CodeKind::kInt8) {
      int8_pair(word(unit, 2 * part), w);
      int8_pair(word(unit, 2 * part + 1), w + 2);
    } else if constexpr (kind == CodeKind::kE4M3) {
      e4m3_pair(word(unit, 2 * part), table, w);
      e4m3_pair(word(unit, 2 * part + 1), table, w + 2);
    } else {
      w[0] = look_up<kind>(code_index<Loaded, kind, 4 * part>({unit}), table);
      w[1] = look_up<kind>(code_index<Loaded, kind, 4 * part + 1>({unit}), table);
      w[2] = look_up<kind>(code_index<Loaded, kind, 4 * part + 2>({unit}), table);
      w[3] = look_up<kind>(code_index<Loaded, kind, 4 * part + 3>({unit}), table);
    }
  }

 private:
  static __m512i word(const char* unit, int j) { return _mm512_load_si512(unit + j * 64); }
  static __m512i insert(__m512i to, __m512i from, int16_t mask) {
    return _mm512_ternarylogic_epi32(to, from, _mm512_set1_epi16(mask), 0xf8);
  }
  struct Loaded {
    using Words = __m512i;
    const char* unit;
    __m512i shifted(int j, int bits) const {
      return _mm512_srli_epi16(word(unit, j), static_cast<unsigned>(bits));
    }
    static __m512i insert(__m512i to, __m512i from, int16_t mask) {
      return CodesAvx512::insert(to, from, mask);
    }
  };

  // The look-up takes the lowest 5 bits of a word, or 6.
  template <CodeKind kind>
  static __m512i look_up(__m512i codes, const Table& table) {
    if constexpr (kind == CodeKind::k6) {
      return _mm512_permutex2var_epi16(table.low, codes, table.high);
    } else {
      return _mm512_permutexvar_epi16(codes, table.low);
    }
  }

  // Codes plus 128 become the lowest bits of the mantissa of a float32 whose last bit is worth one.
  // Less the rest of that number they are the codes' values, whose upper halves are bfloat16.
  static inline __attribute__((always_inline)) void int8_pair(__m512i even_k, __m512i* w) {
    const __m512i odd_k = _mm512_srli_epi32(even_k, 16);
    w[0] = join(int8_low(even_k), int8_low(odd_k));
    w[1] = join(int8_high(even_k), int8_high(odd_k));
  }
  static __m512 int8_low(__m512i d) {
    const __m512i base = _mm512_set1_epi32(0x4b000080);  // 2^23 + 128
    return _mm512_sub_ps(with_base(d, 0xff, base), _mm512_set1_ps(0x1p23f + 128));
  }
  static __m512 int8_high(__m512i d) {
    const __m512i base = _mm512_set1_epi32(0x47008000);  // 2^15 + 128
    return _mm512_sub_ps(with_base(d, 0xff00, base), _mm512_set1_ps(0x1p15f + 128));
  }
  static __m512 with_base(__m512i d, int mask, __m512i base) {
    // base ^ (d & mask)
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(base, d, _mm512_set1_epi32(mask), 0x78));
  }
  static __m512 rounded(__m512 value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_castsi512_ps(
        _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff))));
  }
  static __m512i join(__m512 even, __m512 odd) {
    return _mm512_ternarylogic_epi32(_mm512_srli_epi32(_mm512_castps_si512(even), 16),
                                     _mm512_castps_si512(odd), _mm512_set1_epi32(-0x10000), 0xf8);
  }

  // Exponent and mantissa move into their places, and the exponent's bias grows by 120; what has
  // no exponent is looked up.
  static inline __attribute__((always_inline)) void e4m3_pair(__m512i pair, const Table& table,
                                                              __m512i* w) {
    w[0] = e4m3(_mm512_slli_epi16(pair, 4), _mm512_slli_epi16(pair, 8), table);
    w[1] = e4m3(_mm512_srli_epi16(pair, 4), pair, table);
  }
  static __m512i e4m3(__m512i moved, __m512i sign, const Table& table) {
    const __m512i bits = _mm512_and_si512(moved, _mm512_set1_epi16(0x7f0));
    const __mmask32 denormal = _mm512_testn_epi16_mask(bits, _mm512_set1_epi16(0x780));
    __m512i value = _mm512_add_epi16(bits, _mm512_set1_epi16(120 << 7));
    value = _mm512_mask_permutexvar_epi16(value, denormal, _mm512_srli_epi16(bits, 4), table.low);
    return insert(value, sign, static_cast<int16_t>(0x8000));
  }
};

}  // namespace
}  // namespace nanovllm
