// Sixteen floats as two 256-bit vectors; see simd.h for what each function means.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace nanovllm {
namespace {

struct Simd {
  struct F {
    __m256 a, b;  // lanes 0-7, 8-15
  };

  static F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, F x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
  }
  static F load_n(const float* p, int n) {
    return {_mm256_maskload_ps(p, below(n, 0)), _mm256_maskload_ps(p + 8, below(n, 8))};
  }
  static void store_n(float* p, F x, int n) {
    _mm256_maskstore_ps(p, below(n, 0), x.a);
    _mm256_maskstore_ps(p + 8, below(n, 8), x.b);
  }

  static F load(const uint16_t* p) {
    return {widen(_mm_loadu_si128((const __m128i*)p)),
            widen(_mm_loadu_si128((const __m128i*)(p + 8)))};
  }
  static F load_n(const uint16_t* p, int n) {
    uint16_t lanes[16] = {};
    for (int i = 0; i < n; ++i) lanes[i] = p[i];
    return load(lanes);
  }
  static void store(uint16_t* p, F x) {
    _mm_storeu_si128((__m128i*)p, narrow(x.a));
    _mm_storeu_si128((__m128i*)(p + 8), narrow(x.b));
  }
  static void store_n(uint16_t* p, F x, int n) {
    uint16_t lanes[16];
    store(lanes, x);
    for (int i = 0; i < n; ++i) p[i] = lanes[i];
  }

  static F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
  static F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
  static F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
  static F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
  static F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
  static F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
  static F fma(F x, F y, F z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
  }
  static F abs(F x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
  }
  static F round(F x) {
    return {_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
            _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  static F times_power_of_2(F x, F n) { return {scale(x.a, n.a), scale(x.b, n.b)}; }
  static F if_negative(F x, F then, F otherwise) {
    const __m256 zero = _mm256_setzero_ps();
    return {_mm256_blendv_ps(otherwise.a, then.a, _mm256_cmp_ps(x.a, zero, _CMP_LT_OQ)),
            _mm256_blendv_ps(otherwise.b, then.b, _mm256_cmp_ps(x.b, zero, _CMP_LT_OQ))};
  }
  static F keep_lanes(F x, F otherwise, int begin, int end) {
    return {_mm256_blendv_ps(otherwise.a, x.a, between(begin, end, 0)),
            _mm256_blendv_ps(otherwise.b, x.b, between(begin, end, 8))};
  }

  static float reduce_add(F x) {
    const __m256 a = _mm256_add_ps(x.a, x.b);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
  }
  static float reduce_max(F x) {
    const __m256 a = _mm256_max_ps(x.a, x.b);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
  }

  // Sixteen pairs of bfloat16 as the even and the odd elements.
  static void load_pairs(const uint16_t* p, F* even, F* odd) {
    const __m256i a = _mm256_loadu_si256((const __m256i*)p);
    const __m256i b = _mm256_loadu_si256((const __m256i*)(p + 16));
    const __m256i high = _mm256_set1_epi32(-65536);
    *even = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
             _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
    *odd = {_mm256_castsi256_ps(_mm256_and_si256(a, high)),
            _mm256_castsi256_ps(_mm256_and_si256(b, high))};
  }

  // To bfloat16, in order.
  static __m128i narrow(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  }

 private:
  static __m256i lane_index(int offset) {
    return _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(offset));
  }
  static __m256i below(int n, int offset) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane_index(offset));
  }
  static __m256 between(int begin, int end, int offset) {
    return _mm256_castsi256_ps(_mm256_andnot_si256(below(begin, offset), below(end, offset)));
  }
  static __m256 widen(__m128i x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  // n is a whole number or NaN; the power is 0 below 2^-126 and infinite above 2^127.
  static __m256 scale(__m256 x, __m256 n) {
    n = _mm256_min_ps(_mm256_max_ps(n, _mm256_set1_ps(-127.0f)), _mm256_set1_ps(128.0f));
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  }
};

}  // namespace
}  // namespace nanovllm
