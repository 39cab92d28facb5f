// Decoding of codes (code_panels.h) into bfloat16. For files compiled for AVX2 or better only;
// everything is in an unnamed namespace (see linear_loops.h).
#pragma once

#include <immintrin.h>

#include <cstring>

#include "backend/cpu/linear/code_index.h"

namespace nanovllm {
namespace {

struct CodesAvx2 {
  static constexpr bool kDecodesAlong = false;
  using Words = __m256i;
  // Lower and upper bytes of the values of 16 codes at a time, in both halves.
  struct Table {
    __m256i low[4], high[4];
  };
  static Table load_table(const uint16_t* values) {
    Table table;
    for (int i = 0; i < 4; ++i) {
      alignas(32) uint8_t low[32], high[32];
      for (int j = 0; j < 32; ++j) {
        low[j] = static_cast<uint8_t>(values[16 * i + j % 16]);
        high[j] = static_cast<uint8_t>(values[16 * i + j % 16] >> 8);
      }
      table.low[i] = _mm256_load_si256(reinterpret_cast<const __m256i*>(low));
      table.high[i] = _mm256_load_si256(reinterpret_cast<const __m256i*>(high));
    }
    return table;
  }

  static __m256 load_half(const char* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static __m256 load_bf16(const char* p) {
    const __m256i words =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
  }
  static __m256 load_int8(const char* p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static __m256 broadcast(float x) { return _mm256_set1_ps(x); }
  static __m256 multiply(__m256 v, __m256 w) { return _mm256_mul_ps(v, w); }
  static __m256 divide(__m256 v, __m256 w) { return _mm256_div_ps(v, w); }
  static __m256 fused_multiply_add(__m256 v, __m256 w, __m256 u) {
    return _mm256_fmadd_ps(v, w, u);
  }

  template <CodeKind kind, int part>
  static inline __attribute__((always_inline)) void decode(const char* unit, const Table& table,
                                                           __m256i (&w)[8]) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const Loaded loaded{unit + half * 32};
      if constexpr (kind == CodeKind::kInt8) {
        int8_pair(loaded.shifted(2 * part, 0), w + half);
        int8_pair(loaded.shifted(2 * part + 1, 0), w + 4 + half);
      } else if constexpr (kind == CodeKind::kE4M3) {
        e4m3_pair(loaded.shifted(2 * part, 0), table, w + half);
        e4m3_pair(loaded.shifted(2 * part + 1, 0), table, w + 4 + half);
      } else {
        w[half] = look_up<kind>(code_index<Loaded, kind, 4 * part>(loaded), table);
        w[2 + half] = look_up<kind>(code_index<Loaded, kind, 4 * part + 1>(loaded), table);
        w[4 + half] = look_up<kind>(code_index<Loaded, kind, 4 * part + 2>(loaded), table);
        w[6 + half] = look_up<kind>(code_index<Loaded, kind, 4 * part + 3>(loaded), table);
      }
    }
  }

 private:
  // Half of a unit's vectors.
  struct Loaded {
    using Words = __m256i;
    const char* unit;
    __m256i shifted(int j, int bits) const {
      const auto* at = reinterpret_cast<const __m256i*>(unit + j * 64);
      return _mm256_srli_epi16(_mm256_load_si256(at), bits);
    }
    static __m256i insert(__m256i to, __m256i from, int16_t mask) {
      return _mm256_or_si256(to, _mm256_and_si256(from, _mm256_set1_epi16(mask)));
    }
  };

  template <CodeKind kind>
  static __m256i look_up(__m256i index, const Table& table) {
    const int bits = kind == CodeKind::k4 ? 4 : kind == CodeKind::k5 ? 5 : 6;
    const __m256i codes =
        _mm256_and_si256(index, _mm256_set1_epi16(static_cast<int16_t>((1 << bits) - 1)));
    const __m256i in_table = _mm256_and_si256(codes, _mm256_set1_epi16(15));
    __m256i value = of_sixteen(in_table, table, 0);
#pragma GCC unroll 4
    for (int i = 1; i < 1 << (bits - 4); ++i) {
      const __m256i above =
          _mm256_cmpgt_epi16(codes, _mm256_set1_epi16(static_cast<int16_t>(16 * i - 1)));
      value = _mm256_blendv_epi8(value, of_sixteen(in_table, table, i), above);
    }
    return value;
  }
  // Codes of 0 to 15 in words. A byte's index from 128 on gives zero.
  static __m256i of_sixteen(__m256i codes, const Table& table, int i) {
    const __m256i low = _mm256_or_si256(codes, _mm256_set1_epi16(static_cast<int16_t>(0x8000)));
    const __m256i high = _mm256_or_si256(_mm256_slli_epi16(codes, 8), _mm256_set1_epi16(0x80));
    return _mm256_or_si256(_mm256_shuffle_epi8(table.low[i], low),
                           _mm256_shuffle_epi8(table.high[i], high));
  }

  // As with AVX-512. The vector of the higher bytes is the next but one.
  static void int8_pair(__m256i even_k, __m256i* w) {
    const __m256i odd_k = _mm256_srli_epi32(even_k, 16);
    w[0] = join(int8(even_k, 0xff, 0x1p23f), int8(odd_k, 0xff, 0x1p23f));
    w[2] = join(int8(even_k, 0xff00, 0x1p15f), int8(odd_k, 0xff00, 0x1p15f));
  }
  static __m256 int8(__m256i d, int mask, float base) {
    const __m256 code = _mm256_castsi256_ps(_mm256_and_si256(d, _mm256_set1_epi32(mask)));
    return _mm256_sub_ps(_mm256_xor_ps(code, _mm256_set1_ps(base + 128)),
                         _mm256_set1_ps(base + 128));
  }
  static __m256i join(__m256 even, __m256 odd) {
    return _mm256_blend_epi16(_mm256_srli_epi32(_mm256_castps_si256(even), 16),
                              _mm256_castps_si256(odd), 0xaa);
  }

  static void e4m3_pair(__m256i pair, const Table& table, __m256i* w) {
    w[0] = e4m3(_mm256_slli_epi16(pair, 4), _mm256_slli_epi16(pair, 8), table);
    w[2] = e4m3(_mm256_srli_epi16(pair, 4), pair, table);
  }
  static __m256i e4m3(__m256i moved, __m256i sign, const Table& table) {
    const __m256i bits = _mm256_and_si256(moved, _mm256_set1_epi16(0x7f0));
    const __m256i normal = _mm256_cmpgt_epi16(bits, _mm256_set1_epi16(0x7f));
    const __m256i value =
        _mm256_blendv_epi8(of_sixteen(_mm256_srli_epi16(bits, 4), table, 0),
                           _mm256_add_epi16(bits, _mm256_set1_epi16(120 << 7)), normal);
    return Loaded::insert(value, sign, static_cast<int16_t>(0x8000));
  }
};

}  // namespace
}  // namespace nanovllm
