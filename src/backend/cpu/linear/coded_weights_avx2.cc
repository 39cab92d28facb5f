// Coding of weights (coded_weights.h) with AVX2.
#include "backend/cpu/linear/coded_weights_avx2.h"

#include "backend/cpu/linear/linear_kernels.h"

namespace nanovllm {
namespace {

struct Coder {
  __m256i base;
  WeightPatch* next_patch;

  // Takes the codes out of 16 words, from `position` of the unit on: what is left are signs and
  // mantissas. Words without a code become zeros and patches.
  __m256i code(__m256i* words, uint32_t unit, int position) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i exponents =
        _mm256_and_si256(_mm256_srli_epi16(*words, 7), _mm256_set1_epi16(0xff));
    const __m256i codes = _mm256_sub_epi16(exponents, base);
    const __m256i in_table =
        _mm256_and_si256(_mm256_cmpgt_epi16(codes, zero),
                         _mm256_cmpgt_epi16(_mm256_set1_epi16(kCodedExponents + 1), codes));
    const __m256i kept = _mm256_or_si256(in_table, _mm256_cmpeq_epi16(exponents, zero));
    const uint32_t missing = ~static_cast<uint32_t>(_mm256_movemask_epi8(kept));
    if (__builtin_expect(missing != 0, 0)) list(*words, missing, unit, position);
    const __m256i rest = _mm256_and_si256(*words, _mm256_set1_epi16(kSignAndMantissa));
    *words = _mm256_and_si256(kept, rest);
    return _mm256_and_si256(in_table, codes);
  }

 private:
  // `missing` has two bits a word.
  void list(__m256i words, uint32_t missing, uint32_t unit, int position) {
    alignas(32) uint16_t bits[16];
    _mm256_store_si256(reinterpret_cast<__m256i*>(bits), words);
    for (int i = 0; i < 16; ++i) {
      if ((missing >> 2 * i & 1) != 0) {
        *next_patch++ = {unit, static_cast<uint16_t>(position + i), bits[i]};
      }
    }
  }
};

__m256i load(const char* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

void stream(char* to, __m256i value) { _mm256_stream_si256(reinterpret_cast<__m256i*>(to), value); }

}  // namespace

int64_t code_panel_avx2(const char* plain, int64_t num_steps, char* coded, WeightPatch* patches) {
  const int base = write_code_table(plain, num_steps, coded);
  coded += kCodeTableBytes;
  Coder coder{_mm256_set1_epi16(static_cast<int16_t>(base)), patches};
  for (int64_t unit = 0; unit < num_steps / kUnitSteps; ++unit) {
    __m256i w[4][2], codes[2] = {};
    for (int i = 0; i < 4; ++i) {
      for (int half = 0; half < 2; ++half) {
        w[i][half] = load(plain + i * 64 + half * 32);
        const __m256i code =
            coder.code(&w[i][half], static_cast<uint32_t>(unit), i * 32 + half * 16);
        codes[half] = _mm256_or_si256(codes[half], _mm256_slli_epi16(code, 4 * i));
      }
    }
    for (int half = 0; half < 2; ++half) {
      char* to = coded + half * 32;
      stream(to, _mm256_or_si256(w[0][half], swap_bytes(w[1][half])));
      stream(to + 64, _mm256_or_si256(w[2][half], swap_bytes(w[3][half])));
      stream(to + 128, codes[half]);
    }
    plain += kUnitSteps * kPanelStepBytes;
    coded += kUnitBytes;
  }
  _mm_sfence();
  *coder.next_patch = {kNoUnit, 0, 0};
  return coder.next_patch - patches;
}

}  // namespace nanovllm
