// Sixteen floats as one 512-bit vector; see simd.h for what each function means.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace nanovllm {
namespace {

struct Simd {
  using F = __m512;

  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store_n(float* p, F x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }

  static F load(const uint16_t* p) { return widen(_mm256_loadu_si256((const __m256i*)p)); }
  static F load_n(const uint16_t* p, int n) { return widen(_mm256_maskz_loadu_epi16(first(n), p)); }
  static void store(uint16_t* p, F x) { _mm256_storeu_si256((__m256i*)p, narrow(x)); }
  static void store_n(uint16_t* p, F x, int n) { _mm256_mask_storeu_epi16(p, first(n), narrow(x)); }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F abs(F x) { return _mm512_abs_ps(x); }
  static F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | 8); }
  static F times_power_of_2(F x, F n) { return _mm512_scalef_ps(x, n); }
  static F if_negative(F x, F then, F otherwise) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), otherwise,
                                then);
  }
  static F keep_lanes(F x, F otherwise, int begin, int end) {
    return _mm512_mask_blend_ps(static_cast<__mmask16>(first(end) & ~first(begin)), otherwise, x);
  }

  static float reduce_add(F x) {
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
  }
  static float reduce_max(F x) {
    const __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
  }

  // Sixteen pairs of bfloat16 as the even and the odd elements.
  static void load_pairs(const uint16_t* p, F* even, F* odd) {
    const __m512i pairs = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
  }

  // To bfloat16, denormals too.
  static __m256i round_to_bf16(F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(
        _mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16));
  }

 private:
  static __mmask16 first(int n) {  // n in 0 .. 16
    return static_cast<__mmask16>((1u << n) - 1);
  }
  static F widen(__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
  static __m256i narrow(F x) {
#ifdef __AVX512BF16__
    return (__m256i)_mm512_cvtneps_pbh(x);
#else
    return round_to_bf16(x);
#endif
  }
};

}  // namespace
}  // namespace nanovllm
