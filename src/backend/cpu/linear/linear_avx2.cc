// Matrix products with float32 FMA of AVX2, the transposition that packs matrices, conversions.
#include <immintrin.h>

#include <cstring>

#include "backend/cpu/linear/coded_weights_avx2.h"
#include "backend/cpu/linear/codes_avx2.h"
#include "backend/cpu/linear/linear_coded_loops.h"
#include "backend/cpu/linear/linear_group_loops.h"
#include "backend/cpu/linear/linear_kernels.h"
#include "backend/cpu/simd_avx2.h"

namespace nanovllm {
namespace {

struct Avx2Ops {
  using Vec = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kAskingRows = 1;
  static Vec zero() { return _mm256_setzero_ps(); }
  static Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Vec value) { _mm256_storeu_ps(p, value); }
  static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static inline __attribute__((always_inline)) void prefetch(const char* p) {
    _mm_prefetch(p, _MM_HINT_T1);
  }
  static inline __attribute__((always_inline)) void prefetch_near(const char* p) {
    _mm_prefetch(p, _MM_HINT_T0);
  }
  static void store_f32(char* p, int lanes, Vec value) {
    if (lanes == kLanes) {
      _mm256_storeu_ps(reinterpret_cast<float*>(p), value);
    } else {
      std::memcpy(p, &value, static_cast<size_t>(lanes) * 4);
    }
  }
  static void store_bf16(char* p, int lanes, Vec value) {
    const __m128i rounded = Simd::narrow(value);
    if (lanes == kLanes) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(p), rounded);
    } else {
      std::memcpy(p, &rounded, static_cast<size_t>(lanes) * 2);
    }
  }
};

struct FloatOps : Avx2Ops {
  using A = __m256;
  using B = __m256;
  static constexpr int kRowBytes = 4;
  static constexpr int kMaxRows = 6;
  static constexpr int vectors(int rows) { return rows == 1 ? 8 : rows <= 3 ? 4 : 2; }
  template <int rows>
  static A load_a(const char* p) {
    return _mm256_broadcast_ss(reinterpret_cast<const float*>(p));
  }
  static B load_b(const char* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
  static Vec multiply_add(Vec acc, A a, B b) { return _mm256_fmadd_ps(a, b, acc); }
};

// A step of bfloat16 weights holds two values of k, the even one in the low half of a lane; as
// float32 they are the bits moved up.
struct WideningOps : Avx2Ops, CodesAvx2 {
  struct A {
    __m256 even, odd;
  };
  using B = A;
  static constexpr int kRowBytes = 8;
  static constexpr int kMaxRows = 5;
  static constexpr int vectors(int rows) { return rows <= 2 ? 4 : 2; }
  template <int rows>
  static A load_a(const char* p) {
    return {_mm256_broadcast_ss(reinterpret_cast<const float*>(p)),
            _mm256_broadcast_ss(reinterpret_cast<const float*>(p + rows * 4))};
  }
  using Panel = CodedPanel;
  static void store_words(char* p, Words words) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(p), words);
  }
  static B weights(Words pairs) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)))};
  }
  static B load_b(const char* p) {
    return weights(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Vec multiply_add(Vec acc, A a, B b) {
    return _mm256_fmadd_ps(a.odd, b.odd, _mm256_fmadd_ps(a.even, b.even, acc));
  }
};

// r[i] becomes column i of the 8x8 elements.
inline void transpose_8x8(__m256i* r) {
  __m256i t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    const __m256i upper = r[i], lower = r[i + 4];
    r[i] = _mm256_permute2x128_si256(upper, lower, 0x20);
    r[i + 4] = _mm256_permute2x128_si256(upper, lower, 0x31);
  }
}

}  // namespace

void linear_bf16_avx2(const LinearBlock& block) { CodedLoops<WideningOps>::run(block); }

void linear_codes_avx2(const LinearBlock& block) { GroupLoops<WideningOps>::run(block); }

void linear_f32_avx2(const LinearBlock& block) { LinearLoops<FloatOps>::run(block); }

void transpose_avx2(const void* const* rows, int num_rows, int64_t count, void* out, int64_t stride,
                    bool past_caches) {
  alignas(32) static constexpr int32_t kMask[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
  for (int64_t d = 0; d < count; d += 8) {
    for (int first = 0; first < num_rows; first += 8) {
      const int n = num_rows - first < 8 ? num_rows - first : 8;
      __m256i r[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        r[i] = i < n ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(
                           static_cast<const char*>(rows[first + i]) + d * 4))
                     : _mm256_setzero_si256();
      }
      transpose_8x8(r);
      int32_t* p = static_cast<int32_t*>(out) + d * stride + first;
      const __m256i mask = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMask + 8 - n));
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        if (past_caches) {
          _mm256_stream_si256(reinterpret_cast<__m256i*>(p + i * stride), r[i]);
        } else {
          _mm256_maskstore_epi32(p + i * stride, mask, r[i]);
        }
      }
    }
  }
  if (past_caches) _mm_sfence();
}

void bf16_to_f32_avx2(const void* in, float* out, int64_t n) {
  const auto* p = static_cast<const uint16_t*>(in);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) Simd::store(out + i, Simd::load(p + i));
  if (i < n) bf16_to_f32_portable(p + i, out + i, n - i);
}

void f16_to_f32_avx2(const void* in, float* out, int64_t n) {
  const char* p = static_cast<const char*>(in);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(out + i,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i * 2))));
  }
  if (i < n) f16_to_f32_portable(p + i * 2, out + i, n - i);
}

void f32_to_bf16_avx2(const void* in, uint16_t* out, int64_t n) {
  const auto* p = static_cast<const float*>(in);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) Simd::store(out + i, Simd::load(p + i));
  if (i < n) f32_to_bf16_portable(p + i, out + i, n - i);
}

}  // namespace nanovllm
