// How weights in the codes of a quantised format (base/code_format.h) lie in device memory: in the
// order in which the lanes of a warp hold them as the left operand of mma.m16n8k16 (mma.cuh).
//
//   tile   16 rows (output features) of the matrix, all of K: blocks, the last one with the units
//          that are left
//   block  256 columns: a header, then 4 units
//   header scales, offsets if there are any, each [groups][8][2] of the scale's type: of a group of
//          the block the rows r and r + 8. Of WeightLayout::kSuper instead scales and offsets
//          [supers][8][2], then the groups' scale codes and offset codes [groups][8][2], bytes.
//          None where a row has one scale: these stand behind the tiles, [16 tiles] float32
//   unit   64 columns, 4 steps of 16: planes of whole words for each of the 32 lanes. Of a step a
//          lane holds 4 pairs of neighbours: pair i of row lane / 4 + i % 2 * 8 and of the columns
//          lane % 4 * 2 + i / 2 * 8 and the next one. Words of a lane have of step s, pair i
//     4 bits   [32][4]     of word s the 4 bits from 4 i and from 16 + 4 i on; of codes that a
//                          table has values for byte i, the first code in its lower half
//     5 bits   likewise, then [32][1]: of the highest bits those from 4 s + i and 16 on
//     6 bits   likewise, then [32][2]: of word s / 2 the 2 bits from s % 2 * 8 + 2 i and 16 on
//     8 bits   [2][32][4]  of plane s / 2, word s % 2 * 2 + i / 2 the bytes i % 2 and i % 2 + 2
//
// What K lacks to whole units has zeros for codes, and what a last group or tile lacks for scales.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ops/host_matrix.h"
#include "ops/layer_spec.h"

namespace nanovllm::cuda {

constexpr int kTileRows = 16;
constexpr int kUnitColumns = 64, kUnitSteps = 4;
constexpr int kBlockUnits = 4, kBlockColumns = kBlockUnits * kUnitColumns;

enum class CodeKind {
  k4,       // whole numbers from `first_value` on, of 4 bits
  k5,       // of 5
  k6,       // of 6
  kTable4,  // 16 values
  kInt8,    // two's complement
  kE4M3,    // float8 with 4 bits of exponent
};
constexpr int unit_bytes_of(CodeKind kind) {
  switch (kind) {
    case CodeKind::k4:
    case CodeKind::kTable4:
      return 512;
    case CodeKind::k5:
      return 640;
    case CodeKind::k6:
      return 768;
    case CodeKind::kInt8:
    case CodeKind::kE4M3:
      return 1024;
  }
  return 0;
}
// What a group's offset o is for: an element is
enum class OffsetKind {
  kNone,         // s v
  kTaken,        // s (v - o), in registers: codes are small whole numbers
  kScaledTaken,  // the same; products take o times the sum of the activations
  kAdded,        // s v + o
};

// Of one matrix, or of equal ones one behind the other.
struct CodeShape {
  CodeKind kind = CodeKind::k4;
  ScaleKind scales = ScaleKind::kFloat16;
  OffsetKind offsets = OffsetKind::kNone;
  bool is_super = false;
  bool is_row_scaled = false;  // a row has one scale
  bool divides_by_factor = false;
  float factor = 1;     // of all scales
  int first_value = 0;  // of whole numbers of less than 8 bits
  int out_features = 0, in_features = 0;
  // Of gates and ups, the rows of each of the weights one behind the other: then a tile has 8
  // gates, of the first half of a weight's rows, and in its rows from 8 on the ups of the same
  // outputs. 0 = rows are in order.
  int gated_rows = 0;
  int num_tiles = 0, num_units = 0, num_blocks = 0;
  int group_columns = 0;  // 16 to 256, a power of two, whose logarithm is group_shift
  int super_columns = 0;  // likewise
  int group_shift = 0, super_shift = 0;
  int header_bytes = 0, unit_bytes = 0, block_bytes = 0;
  int64_t tile_bytes = 0;
  int64_t bytes = 0;        // of all
  uint16_t table[16] = {};  // bfloat16

  constexpr int64_t row_scales_offset() const { return tile_bytes * num_tiles; }
};

// Stacked matrices with one format, of those that a weight is made of.
struct CodePart {
  CodeShape shape;
  std::span<const HostMatrix> pieces;
};

// The parts of a product's weight, activations being of type `act`; none where it is to be decoded
// to numbers, all of it: where a piece has no codes, or codes that kernels have no place for.
std::vector<CodePart> plan_code_parts(std::span<const HostMatrix> pieces, DType act);
// Of most of what that gives; plain where it gives none.
WeightLayout code_layout_of(std::span<const HostMatrix> pieces, DType act);

// Of a mixture's experts, whose products take one part each for all of them, in whole tiles; plain
// where a matrix is to be decoded, and so all of them.
WeightLayout code_layout_of(const Experts& experts, DType act);

// Bytes [begin, begin + count) of the part in memory. Throws what reading codes throws.
void pack_codes(const CodePart& part, int64_t begin, int64_t count, char* out);

}  // namespace nanovllm::cuda
