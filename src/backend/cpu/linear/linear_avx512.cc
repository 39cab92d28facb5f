// Matrix products with float32 FMA of AVX-512, and the transposition that packs matrices.
#include <immintrin.h>

#include "backend/cpu/linear/coded_weights_avx512.h"
#include "backend/cpu/linear/codes_avx512.h"
#include "backend/cpu/linear/linear_avx512_ops.h"
#include "backend/cpu/linear/linear_coded_loops.h"
#include "backend/cpu/linear/linear_group_loops.h"

namespace nanovllm {
namespace {

struct FloatOps : Avx512Ops {
  using A = __m512;
  using B = __m512;
  static constexpr int kRowBytes = 4;
  template <int rows>
  static A load_a(const char* p) {
    return _mm512_set1_ps(*reinterpret_cast<const float*>(p));
  }
  static B load_b(const char* p) { return _mm512_loadu_ps(p); }
  static Vec multiply_add(Vec acc, A a, B b) { return _mm512_fmadd_ps(a, b, acc); }
};

// A step of bfloat16 weights holds two values of k, the even one in the low half of a lane; as
// float32 they are the bits moved up.
struct WideningOps : Avx512Ops, CodesAvx512 {
  struct A {
    __m512 even, odd;
  };
  using B = A;
  using Panel = CodedPanel;
  static constexpr int kRowBytes = 8;
  template <int rows>
  static A load_a(const char* p) {
    return {_mm512_set1_ps(*reinterpret_cast<const float*>(p)),
            _mm512_set1_ps(*reinterpret_cast<const float*>(p + rows * 4))};
  }
  static B weights(__m512i pairs) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)))};
  }
  static B load_b(const char* p) { return weights(_mm512_loadu_si512(p)); }
  static Vec multiply_add(Vec acc, A a, B b) {
    return _mm512_fmadd_ps(a.odd, b.odd, _mm512_fmadd_ps(a.even, b.even, acc));
  }
};

// 16 rows of 16 elements; rows that are null count as zeros. r[i] becomes column i.
inline void transpose_16x16(__m512i* r) {
  __m512i t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  // Columns 0 to 3 of each group of four rows, in each 128-bit quarter.
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

}  // namespace

void linear_bf16_avx512(const LinearBlock& block) { CodedLoops<WideningOps>::run(block); }

void linear_codes_avx512(const LinearBlock& block) { GroupLoops<WideningOps>::run(block); }

void decode_rounded_avx512(const CodePanels& shape, const char* panel, int64_t num_steps,
                           char* out) {
  GroupLoops<WideningOps>::decode_rounded(shape, panel, num_steps, out);
}

void linear_f32_avx512(const LinearBlock& block) { LinearLoops<FloatOps>::run(block); }

void transpose_avx512(const void* const* rows, int num_rows, int64_t count, void* out,
                      int64_t stride, bool past_caches) {
  for (int first = 0; first < num_rows; first += 16) {
    const int n = num_rows - first < 16 ? num_rows - first : 16;
    const __mmask16 mask = static_cast<__mmask16>((1u << n) - 1u);
    for (int64_t d = 0; d < count; d += 16) {
      __m512i r[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        r[i] = i < n ? _mm512_loadu_si512(static_cast<const char*>(rows[first + i]) + d * 4)
                     : _mm512_setzero_si512();
      }
      transpose_16x16(r);
      char* p = static_cast<char*>(out) + (d * stride + first) * 4;
      if (past_caches) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
          _mm512_stream_si512(reinterpret_cast<__m512i*>(p + i * stride * 4), r[i]);
        }
      } else {
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) _mm512_mask_storeu_epi32(p + i * stride * 4, mask, r[i]);
      }
    }
  }
  if (past_caches) _mm_sfence();
}

}  // namespace nanovllm
