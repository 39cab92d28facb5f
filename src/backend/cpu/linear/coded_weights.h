// bfloat16 weights in 12 bits each, without loss: what memory has to deliver for a product of few
// rows, cut by a quarter. Plain declarations only (see linear_kernels.h).
//
// A weight's exponent takes few of its 256 values within a panel, so its 8 bits become a code of 4:
// 0 stands for the exponent 0 (zeros and denormals), 1 to 15 for 15 neighbouring exponents that the
// panel's own table names. A weight with another exponent is coded as zero and listed as a patch.
// (Observed of published models by Zhang et al., "70% Size, 100% Accuracy", arXiv:2504.11651, who
// vary the codes' lengths; equal lengths are what vector instructions decode quickest.)
//
//   panel   table: 16 exponents, in their place within a bfloat16, twice: 64 bytes
//           units: [steps / 2] of 192 bytes
//   unit    two steps of a plain panel, that is four vectors w0 to w3 of 32 words; word i of
//           signs and mantissas 01   w0[i]'s in their place, w1[i]'s with the bytes swapped
//           signs and mantissas 23   the same of w2 and w3
//           codes                    of w0[i] to w3[i], from the lowest 4 bits on
#pragma once

#include <cstdint>

namespace nanovllm {

inline constexpr int kUnitSteps = 2;
inline constexpr int kUnitBytes = 192;
inline constexpr int kUnitWeights = 128;
inline constexpr int kCodeTableBytes = 64;

// A weight whose exponent has no code. A panel's patches are in order; behind the last is one with
// unit kNoUnit.
struct WeightPatch {
  uint32_t unit;
  uint16_t position;  // word of the unit's 128
  uint16_t bits;
};
inline constexpr uint32_t kNoUnit = UINT32_MAX;

// Neighbouring exponents that have a code.
inline constexpr int kCodedExponents = 15;

// What a unit's first two vectors hold of a weight.
inline constexpr int16_t kSignAndMantissa = static_cast<int16_t>(0x807f);

// Chooses a plain panel's exponents and writes the table of its coded form. Returns the exponent
// below the first of them.
int write_code_table(const char* plain, int64_t num_steps, char* coded);

// Codes a plain panel; `coded` is aligned to 64 bytes and its units are written past the caches.
// `patches` has room for every weight and the patch that ends them. Returns their number, without
// that one.
int64_t code_panel_avx2(const char* plain, int64_t num_steps, char* coded, WeightPatch* patches);
int64_t code_panel_avx512(const char* plain, int64_t num_steps, char* coded, WeightPatch* patches);

}  // namespace nanovllm
