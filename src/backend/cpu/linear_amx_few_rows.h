// Products of so few rows that memory is the limit, with AVX-512 but the very sums of AMX: vector
// loads keep more of memory's answers under way than loads of tiles do. For linear_amx.cc only;
// everything is in an unnamed namespace (see linear_loops.h).
//
// TDPBF16PS adds up the 16 products with even k in a float32 from zero, each product and sum
// rounded once, likewise those with odd k, and adds the sum of both to the result; denormals are
// zeros (Intel's Software Developer's Manual, volume 2).
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "backend/cpu/linear_kernels.h"

namespace nanovllm {
namespace {

constexpr int64_t kTileSteps = 16;  // of a tile of weights

// Denormals are zeros while it lives.
class NoDenormals {
 public:
  NoDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero); }
  ~NoDenormals() { _mm_setcsr(saved_); }
  NoDenormals(const NoDenormals&) = delete;
  NoDenormals& operator=(const NoDenormals&) = delete;

 private:
  static constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x40;
  const unsigned saved_;
};

class FewRows {
 public:
  static constexpr int kMaxRows = 4;
  // That go side by side: as many as there are registers for, so that memory has several streams.
  static constexpr int panels_at_once(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

  // The results of `rows` rows with neighbouring panels, [rows][panels][32].
  template <int rows, int panels>
  static void multiply(const LinearBlock& block, const char* a, const char* b, float* results) {
    const int64_t panel_bytes = block.num_steps * kPanelStepBytes;
    Sums<rows, panels> total;
    total.clear();
    for (int64_t s = 0; s < block.num_steps; s += kTileSteps) {
      Sums<rows, panels> even, odd;
      even.clear();
      odd.clear();
#pragma GCC unroll 1
      for (int64_t step = s; step < s + kTileSteps; ++step, b += kPanelStepBytes) {
        Pair x[rows];
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) x[r] = broadcast(a + r * block.a_row_bytes + step * 4);
#pragma GCC unroll 8
        for (int v = 0; v < panels * 2; ++v) {
          const char* p = b + v / 2 * panel_bytes + v % 2 * 64;
          _mm_prefetch(p + kPrefetchBytes, _MM_HINT_T1);
          const Pair w = split(_mm512_loadu_si512(p));
#pragma GCC unroll 4
          for (int r = 0; r < rows; ++r) {
            even.v[r][v] = _mm512_fmadd_ps(x[r].even, w.even, even.v[r][v]);
            odd.v[r][v] = _mm512_fmadd_ps(x[r].odd, w.odd, odd.v[r][v]);
          }
        }
      }
      total.add(even, odd);
    }
    std::memcpy(results, total.v, sizeof total.v);
  }

 private:
  static constexpr int64_t kPrefetchBytes = 4096;

  struct Pair {
    __m512 even, odd;
  };
  static Pair split(__m512i pairs) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-0x10000)))};
  }
  static Pair broadcast(const char* p) {
    int32_t pair;
    std::memcpy(&pair, p, sizeof pair);
    return split(_mm512_set1_epi32(pair));
  }

  template <int rows, int panels>
  struct Sums {
    __m512 v[rows][panels * 2];

    void clear() {
      for (auto& row : v)
        for (__m512& x : row) x = _mm512_setzero_ps();
    }
    void add(const Sums& even, const Sums& odd) {
      for (int r = 0; r < rows; ++r)
        for (int i = 0; i < panels * 2; ++i)
          v[r][i] = _mm512_add_ps(v[r][i], _mm512_add_ps(even.v[r][i], odd.v[r][i]));
    }
  };
};

}  // namespace
}  // namespace nanovllm
