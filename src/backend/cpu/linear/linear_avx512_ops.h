// Vector operations that the AVX-512 kernels share. For files compiled for AVX-512 or better only;
// everything is in an unnamed namespace (see linear_loops.h).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/simd_avx512.h"

namespace nanovllm {
namespace {

struct Avx512Ops {
  using Vec = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kAskingRows = 1;
  static constexpr int kMaxRows = 12;
  // 24 accumulators leave room for the weights and a broadcast; with fewer rows more columns keep
  // the adders' pipelines full and several streams of weights open.
  static constexpr int vectors(int rows) { return rows <= 3 ? 8 : rows <= 6 ? 4 : 2; }

  static Vec zero() { return _mm512_setzero_ps(); }
  static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vec value) { _mm512_storeu_ps(p, value); }
  static void store_words(char* p, __m512i words) { _mm512_store_si512(p, words); }
  static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static inline __attribute__((always_inline)) void prefetch(const char* p) {
    _mm_prefetch(p, _MM_HINT_T1);
  }
  static inline __attribute__((always_inline)) void prefetch_near(const char* p) {
    _mm_prefetch(p, _MM_HINT_T0);
  }
  static __mmask16 mask(int lanes) { return static_cast<__mmask16>((1u << lanes) - 1u); }
  static void store_f32(char* p, int lanes, Vec value) {
    _mm512_mask_storeu_ps(p, mask(lanes), value);
  }
  static void store_bf16(char* p, int lanes, Vec value) {
    _mm256_mask_storeu_epi16(p, mask(lanes), Simd::round_to_bf16(value));
  }
};

}  // namespace
}  // namespace nanovllm
