// Weights as the codes of a quantised format (base/code_format.h), in panels of 32 columns (output
// features) like other weights. Plain declarations only (see linear_kernels.h).
//
//   panel   blocks of groups with a header, then what it belongs to: the units of the groups
//   block   a group; of WeightLayout::kSuper the groups that share a scale of 16 bits
//   header  scales [32], offsets [32] if there are any, as the scale's type;
//           of kSuper behind them for each group scale codes [32], offset codes [32], bytes
//   unit    16 k, that is 8 steps of a plain panel or sixteen vectors v0 to v15 of 32 words; words
//           of 16 bits that have the codes of word i of
//     4 bits   [4][32]   v4j to v4j+3, from the lowest 4 bits on
//     5 bits   [5][32]   v3j to v3j+2, from the lowest 5 bits on; bit 15 is bit j of v15's
//     6 bits   [2][3][32]   of the half's eight vectors the first six, two a word; in the highest 4
//              bits of the first and third word the lowest 4 of the seventh and eighth, in those of
//              the second word what these lack
//     8 bits   [8][32]   v2j in the lower byte, v2j+1 in the higher one
//
// Headers and units are whole lines of 64 bytes. What K lacks to whole units has zeros for codes;
// what N lacks to whole panels, and a last block lacks, zeros for scales.
//
// A product adds up code times activation over a group in float32, then the sum times the scale to
// the result. An offset times the sum of the group's activations is added after that.
#pragma once

#include <cstdint>

#include "base/scale_kind.h"

namespace nanovllm {

enum class CodeKind {
  k4,
  k5,
  k6,
  kInt8,
  kE4M3  // float8 with 4 bits of exponent
};

inline constexpr int kCodeUnitColumns = 16;
inline constexpr int kCodeUnitSteps = 8;

// The layout of all panels of a part of a weight, and what its codes stand for.
struct CodePanels {
  CodeKind kind;
  ScaleKind scales;
  bool has_offsets;
  // Offsets are whole numbers that are taken from the value: the offset of the product is -(s z).
  bool offsets_are_zeros;
  bool is_super;
  bool divides_by_factor;
  float factor;
  int64_t num_units;     // of a panel
  int64_t num_groups;    // likewise
  int64_t group_units;   // of a group but the last
  int64_t block_groups;  // of a block but the last
  int64_t header_bytes;
  int64_t unit_bytes;
  int64_t panel_bytes;
  // Values of codes of 4 to 6 bits as bfloat16, repeated up to 64.
  alignas(64) uint16_t values[64];
};

}  // namespace nanovllm
