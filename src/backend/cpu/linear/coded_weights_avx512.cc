// Coding of weights (coded_weights.h) with AVX-512.
#include "backend/cpu/linear/coded_weights_avx512.h"

#include "backend/cpu/linear/linear_kernels.h"

namespace nanovllm {
namespace {

struct Coder {
  __m512i base;
  WeightPatch* next_patch;

  // Takes the codes out of 32 words: what is left are signs and mantissas. Words without a code
  // become zeros and patches.
  __m512i code(__m512i* words, uint32_t unit, int vector) {
    const __m512i exponents =
        _mm512_and_si512(_mm512_srli_epi16(*words, 7), _mm512_set1_epi16(0xff));
    const __m512i codes = _mm512_sub_epi16(exponents, base);
    const __mmask32 in_table = _mm512_cmplt_epu16_mask(
        _mm512_sub_epi16(codes, _mm512_set1_epi16(1)), _mm512_set1_epi16(kCodedExponents));
    const __mmask32 zero = _mm512_testn_epi16_mask(exponents, exponents);
    __mmask32 missing = ~(in_table | zero);
    if (__builtin_expect(missing != 0, 0)) list(*words, missing, unit, vector);
    *words = _mm512_maskz_mov_epi16(~missing,
                                    _mm512_and_si512(*words, _mm512_set1_epi16(kSignAndMantissa)));
    return _mm512_maskz_mov_epi16(in_table, codes);
  }

 private:
  void list(__m512i words, __mmask32 missing, uint32_t unit, int vector) {
    alignas(64) uint16_t bits[32];
    _mm512_store_si512(bits, words);
    for (; missing != 0; missing &= missing - 1) {
      const int i = __builtin_ctz(missing);
      *next_patch++ = {unit, static_cast<uint16_t>(vector * 32 + i), bits[i]};
    }
  }
};

void stream(char* to, __m512i value) { _mm512_stream_si512(reinterpret_cast<__m512i*>(to), value); }

}  // namespace

int64_t code_panel_avx512(const char* plain, int64_t num_steps, char* coded, WeightPatch* patches) {
  const int base = write_code_table(plain, num_steps, coded);
  coded += kCodeTableBytes;
  Coder coder{_mm512_set1_epi16(static_cast<int16_t>(base)), patches};
  for (int64_t unit = 0; unit < num_steps / kUnitSteps; ++unit) {
    __m512i w[4], codes = _mm512_setzero_si512();
    for (int i = 0; i < 4; ++i) {
      w[i] = _mm512_loadu_si512(plain + i * 64);
      const __m512i code = coder.code(&w[i], static_cast<uint32_t>(unit), i);
      codes = _mm512_or_si512(codes, _mm512_slli_epi16(code, static_cast<unsigned>(4 * i)));
    }
    stream(coded, _mm512_or_si512(w[0], swap_bytes(w[1])));
    stream(coded + 64, _mm512_or_si512(w[2], swap_bytes(w[3])));
    stream(coded + 128, codes);
    plain += kUnitSteps * kPanelStepBytes;
    coded += kUnitBytes;
  }
  _mm_sfence();
  *coder.next_patch = {kNoUnit, 0, 0};
  return coder.next_patch - patches;
}

}  // namespace nanovllm
