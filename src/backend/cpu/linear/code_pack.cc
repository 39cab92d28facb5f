#include "backend/cpu/linear/code_pack.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "backend/cpu/linear/code_blocks.h"
#include "backend/cpu/linear/linear_pack.h"
#include "base/dtype.h"

namespace nanovllm {
namespace {

// Columns whose codes are transposed at a time. Decoders unpack whole blocks, of 256 columns at
// most: only where a rank's share begins within a block is one unpacked twice.
constexpr int64_t kChunkColumns = 256;

std::optional<CodeKind> kind_of(const CodeFormat& format) {
  switch (format.code_bits) {
    case 4:
      return CodeKind::k4;
    case 5:
      return CodeKind::k5;
    case 6:
      return CodeKind::k6;
    case 8:
      if (are_int8(format)) return CodeKind::kInt8;
      if (are_e4m3(format)) return CodeKind::kE4M3;
      break;
    default:
      break;
  }
  return std::nullopt;
}

int64_t unit_bytes_of(CodeKind kind) {
  switch (kind) {
    case CodeKind::k4:
      return 256;
    case CodeKind::k5:
      return 320;
    case CodeKind::k6:
      return 384;
    case CodeKind::kInt8:
    case CodeKind::kE4M3:
      break;
  }
  return 512;
}

// Of a group, or of a scale of 16 bits, in the part: a rank's share may begin within one of the
// file's, and has it as several then.
int64_t columns_in_part(const HostMatrix& piece, int64_t columns) {
  return std::gcd(piece.first_col, columns);
}

void set_sizes(CodePanels& shape) {
  const int64_t vector = kPanelColumns * size_of(shape.scales);
  const int64_t offsets = shape.has_offsets ? 2 : 1;
  shape.header_bytes = offsets * vector;
  if (shape.is_super) {
    shape.header_bytes += round_up(shape.block_groups * offsets * kPanelColumns, 64);
  }
  shape.unit_bytes = unit_bytes_of(shape.kind);
  shape.panel_bytes = divide_up(shape.num_groups, shape.block_groups) * shape.header_bytes +
                      shape.num_units * shape.unit_bytes;
}

// Codes of 4 bits of four vectors in one, and so on; see code_panels.h.
void join_words(CodeKind kind, const uint16_t (*v)[kVectorWords], uint16_t (*w)[kVectorWords]) {
  for (int i = 0; i < kVectorWords; ++i) {
    const auto put = [&](int to, unsigned word) { w[to][i] = static_cast<uint16_t>(word); };
    switch (kind) {
      case CodeKind::k4:
        for (int j = 0; j < 4; ++j) {
          const auto* from = v + 4 * j;
          put(j, from[0][i] | from[1][i] << 4 | from[2][i] << 8 | from[3][i] << 12);
        }
        break;
      case CodeKind::k5:
        for (int j = 0; j < 5; ++j) {
          const auto* from = v + 3 * j;
          put(j, from[0][i] | from[1][i] << 5 | from[2][i] << 10 | (v[15][i] >> j & 1) << 15);
        }
        break;
      case CodeKind::k6:
        for (int half = 0; half < 2; ++half) {
          const auto* from = v + 8 * half;
          const unsigned seventh = from[6][i], eighth = from[7][i];
          const unsigned rest[3] = {seventh & 15, seventh >> 4 | eighth >> 4 << 2, eighth & 15};
          for (int j = 0; j < 3; ++j) {
            put(3 * half + j, from[2 * j][i] | from[2 * j + 1][i] << 6 | rest[j] << 12);
          }
        }
        break;
      case CodeKind::kInt8:
      case CodeKind::kE4M3:
        for (int j = 0; j < 8; ++j) put(j, v[2 * j][i] | v[2 * j + 1][i] << 8);
        break;
    }
  }
}

// Codes and scales of a panel's columns, so many at a time.
class ChunkReader {
 public:
  using Unit = uint16_t[kUnitVectors][kVectorWords];

  ChunkReader(const LinearKernels& kernels, std::span<const HostMatrix> pieces, int64_t panel)
      : kernels_(kernels),
        columns_(pieces[0].cols),
        first_col_(pieces[0].first_col),
        group_columns_(pieces[0].codes->group_columns) {
    for (int i = 0; i < kPanelColumns; ++i) {
      rows_[i] = find_row(pieces, panel * kPanelColumns + i);
    }
  }

  // Goes to the chunk of a column; zeros where the panel has no codes.
  void seek(int64_t column) {
    if (column < end_) return;
    first_ = column;
    end_ = column + kChunkColumns;
    const int64_t count = std::min(kChunkColumns, columns_ - first_);
    alignas(64) uint16_t staged[kPanelColumns][kChunkColumns];
    std::array<const void*, kPanelColumns> pointers;
    for (int r = 0; r < kPanelColumns; ++r) {
      uint8_t codes[kChunkColumns] = {};
      if (const auto& [piece, row] = rows_[r]; piece != nullptr) {
        piece->decoder->read_codes_and_scales(piece->file_row(row), first_col_ + first_, count,
                                              codes, scales_[r].data());
      }
      for (int64_t i = 0; i < kChunkColumns; ++i) staged[r][i] = codes[i];
      pointers[r] = staged[r];
    }
    kernels_.transpose(pointers.data(), kPanelColumns, kChunkColumns / 2, units_, kPanelColumns,
                       false);
  }

  // Of the 16 columns from one on, as pairs like a plain panel's bfloat16.
  const Unit& unit(int64_t column) const { return units_[(column - first_) / kCodeUnitColumns]; }
  const GroupScale& scale(int row, int64_t column) const {
    const int64_t first_group = (first_col_ + first_) / group_columns_;
    return scales_[row][static_cast<size_t>((first_col_ + column) / group_columns_ - first_group)];
  }

 private:
  const LinearKernels& kernels_;
  const int64_t columns_, first_col_, group_columns_;  // of the part; of the file's groups
  std::array<StackedRow, kPanelColumns> rows_;
  int64_t first_ = 0, end_ = 0;  // of the part
  alignas(64) Unit units_[kChunkColumns / kCodeUnitColumns];
  // Of the file's groups that the chunk has a share of.
  std::array<std::array<GroupScale, kChunkColumns / kCodeUnitColumns + 1>, kPanelColumns> scales_;
};

void put(const CodeGroup<char>& group, int column, const GroupScale& scale) {
  const CodePanels& shape = group.shape;
  if (group.in_block == 0) {
    write_scale(shape.scales, scale.scale, group.scale(column));
    if (shape.has_offsets) write_scale(shape.scales, scale.offset, group.offset(column));
  }
  if (!shape.is_super) return;
  *group.scale_code(column) = static_cast<char>(scale.scale_code);
  if (shape.has_offsets) *group.offset_code(column) = static_cast<char>(scale.offset_code);
}

}  // namespace

std::optional<CodePanels> plan_code_panels(const HostMatrix& piece) {
  if (piece.codes == nullptr) return std::nullopt;
  const CodeFormat& format = *piece.codes;
  const std::optional<CodeKind> kind = kind_of(format);
  if (!kind) return std::nullopt;
  const int64_t whole = std::max(piece.row_stride, piece.first_col + piece.cols);
  const bool is_one_group = format.group_columns >= whole;
  const int64_t group_columns =
      is_one_group ? format.group_columns : columns_in_part(piece, format.group_columns);
  if (!is_one_group && group_columns % kCodeUnitColumns != 0) return std::nullopt;
  CodePanels shape = {};
  shape.kind = *kind;
  shape.scales = format.scales;
  shape.has_offsets = format.offset != CodeFormat::Offset::kNone;
  shape.offsets_are_zeros = format.offset == CodeFormat::Offset::kZero;
  shape.is_super = format.layout == WeightLayout::kSuper;
  shape.divides_by_factor = format.divides_by_factor;
  shape.factor = format.factor;
  shape.num_units = divide_up(piece.cols, kCodeUnitColumns);
  shape.num_groups = is_one_group ? 1 : divide_up(piece.cols, group_columns);
  shape.group_units = is_one_group ? shape.num_units : group_columns / kCodeUnitColumns;
  shape.block_groups =
      shape.is_super ? columns_in_part(piece, format.super_columns) / group_columns : 1;
  set_sizes(shape);
  if (format.code_bits < 8) {
    for (int i = 0; i < 64; ++i) {
      shape.values[i] = to_bfloat16(format.values[i & ((1 << format.code_bits) - 1)]).bits;
    }
  } else {
    for (int i = 0; i < 64; ++i) {
      shape.values[i] = to_bfloat16(e4m3_to_float(static_cast<uint8_t>(i))).bits;
    }
  }
  return shape;
}

void pack_code_panel(const LinearKernels& kernels, const CodePanels& shape,
                     std::span<const HostMatrix> pieces, int64_t panel, char* out) {
  ChunkReader reader(kernels, pieces, panel);
  int64_t column = 0;
  const auto pack_group = [&](const CodeGroup<char>& group) {
    reader.seek(column);
    for (int i = 0; i < kPanelColumns; ++i) put(group, i, reader.scale(i, column));
    for (int64_t unit = 0; unit < group.num_units; ++unit, column += kCodeUnitColumns) {
      reader.seek(column);
      alignas(64) uint16_t joined[kUnitVectors][kVectorWords];
      join_words(shape.kind, reader.unit(column), joined);
      std::memcpy(group.units + unit * shape.unit_bytes, joined,
                  static_cast<size_t>(shape.unit_bytes));
    }
  };
  for_each_group(shape, out, shape.num_groups, shape.num_units, pack_group);
}

}  // namespace nanovllm
