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

#include "backend/cpu/linear/coded_weights_avx512.h"
#include "backend/cpu/linear/linear_kernels.h"

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

  // The results of `rows` rows with `panels` panels from `panel` on, [rows][panels][32].
  template <int rows, int panels>
  static void multiply(const LinearBlock& block, const char* a, int64_t panel, float* results) {
    if (block.patches != nullptr) {
      multiply<CodedUnits<panels>, rows, panels>(block, a, panel, results);
    } else {
      multiply<PlainUnits, rows, panels>(block, a, panel, results);
    }
  }

 private:
  // Both give two steps of a panel at a time.
  class PlainUnits {
   public:
    PlainUnits(const LinearBlock& block, int64_t panel)
        : b_(block.b + panel * block.panel_bytes), panel_bytes_(block.panel_bytes) {}
    void next(int p, uint32_t unit, __m512i (&w)[4]) {
      const char* at = b_ + p * panel_bytes_ + unit * int64_t{kUnitSteps * kPanelStepBytes};
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        _mm_prefetch(at + kPrefetchBytes + i * 64, _MM_HINT_T1);
        w[i] = _mm512_loadu_si512(at + i * 64);
      }
    }

   private:
    const char* b_;
    int64_t panel_bytes_;
  };
  template <int panels>
  class CodedUnits {
   public:
    CodedUnits(const LinearBlock& block, int64_t panel) {
      for (int p = 0; p < panels; ++p) {
        panels_[p] =
            CodedPanel(block.b + (panel + p) * block.panel_bytes, block.patches[panel + p]);
      }
    }
    void next(int p, uint32_t unit, __m512i (&w)[4]) {
#pragma GCC unroll 4
      for (int line = 0; line < kUnitBytes; line += 64) {
        _mm_prefetch(panels_[p].unit() + kPrefetchBytes + line, _MM_HINT_T1);
      }
      panels_[p].next(unit, 0, w);
    }

   private:
    CodedPanel panels_[panels];
  };

  template <typename Units, int rows, int panels>
  static void multiply(const LinearBlock& block, const char* a, int64_t panel, float* results) {
    const NoDenormals no_denormals;
    Units units(block, panel);
    Sums<rows, panels> total;
    total.clear();
    const uint32_t num_units = static_cast<uint32_t>(block.num_steps / kUnitSteps);
    for (uint32_t first = 0; first < num_units; first += kTileSteps / kUnitSteps) {
      Sums<rows, panels> even, odd;
      even.clear();
      odd.clear();
#pragma GCC unroll 1
      for (uint32_t unit = first; unit < first + kTileSteps / kUnitSteps; ++unit) {
        const char* x = a + unit * int64_t{kUnitSteps * 4};
#pragma GCC unroll 4
        for (int p = 0; p < panels; ++p) {
          __m512i w[4];
          units.next(p, unit, w);
#pragma GCC unroll 4
          for (int i = 0; i < 4; ++i) {
            const Pair b = split(w[i]);
            const int v = 2 * p + i % 2;
#pragma GCC unroll 4
            for (int r = 0; r < rows; ++r) {
              const Pair ar = broadcast(x + r * block.a_row_bytes + i / 2 * 4);
              even.v[r][v] = _mm512_fmadd_ps(ar.even, b.even, even.v[r][v]);
              odd.v[r][v] = _mm512_fmadd_ps(ar.odd, b.odd, odd.v[r][v]);
            }
          }
        }
      }
      total.add(even, odd);
    }
    std::memcpy(results, total.v, sizeof total.v);
  }

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
      for (auto& row : v) {
        for (__m512& x : row) x = _mm512_setzero_ps();
      }
    }
    void add(const Sums& even, const Sums& odd) {
      for (int r = 0; r < rows; ++r) {
        for (int i = 0; i < panels * 2; ++i) {
          v[r][i] = _mm512_add_ps(v[r][i], _mm512_add_ps(even.v[r][i], odd.v[r][i]));
        }
      }
    }
  };
};

}  // namespace
}  // namespace nanovllm
