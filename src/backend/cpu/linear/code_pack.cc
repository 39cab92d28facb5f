#include "backend/cpu/linear/code_pack.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <vector>

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
      return 512;
    case CodeKind::kBFloat16:
      break;
  }
  return 1024;
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

using PanelRows = std::array<StackedRow, kPanelColumns>;

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
      case CodeKind::kBFloat16:
        break;
    }
  }
}

// Codes of the columns from `first` on, as pairs like a plain panel's bfloat16; zeros where the
// panel has none.
void read_chunk(const LinearKernels& kernels, const PanelRows& rows, int64_t first, int64_t count,
                uint16_t* out) {
  alignas(64) uint16_t staged[kPanelColumns][kChunkColumns];
  std::array<const void*, kPanelColumns> pointers;
  for (int r = 0; r < kPanelColumns; ++r) {
    uint8_t codes[kChunkColumns] = {};
    const auto& [piece, row] = rows[r];
    if (piece != nullptr) {
      piece->decoder->read_codes(piece->file_row(row), piece->first_col + first, count, codes);
    }
    for (int64_t i = 0; i < kChunkColumns; ++i) staged[r][i] = codes[i];
    pointers[r] = staged[r];
  }
  kernels.transpose(pointers.data(), kPanelColumns, kChunkColumns / 2, out, kPanelColumns, false);
}

void put(const CodeHeader& header, int column, const GroupScale& scale) {
  const CodePanels& shape = header.shape;
  if (header.group == 0) {
    const int64_t at = int64_t{column} * size_of(shape.scales);
    write_scale(shape.scales, scale.scale, header.at + at);
    if (shape.has_offsets) write_scale(shape.scales, scale.offset, header.offsets() + at);
  }
  if (!shape.is_super) return;
  header.codes()[column] = static_cast<char>(scale.scale_code);
  if (shape.has_offsets) {
    header.codes()[kPanelColumns + column] = static_cast<char>(scale.offset_code);
  }
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
    for (int i = 0; i < 64; ++i)
      shape.values[i] = to_bfloat16(e4m3_to_float(static_cast<uint8_t>(i))).bits;
  }
  return shape;
}

void pack_code_panel(const LinearKernels& kernels, const CodePanels& shape,
                     std::span<const HostMatrix> pieces, int64_t panel, char* out) {
  const int64_t columns = pieces[0].cols;
  PanelRows rows;
  for (int i = 0; i < kPanelColumns; ++i) rows[i] = find_row(pieces, panel * kPanelColumns + i);

  // Of the file's groups that the part has a share of.
  const int64_t group_columns = pieces[0].codes->group_columns, first_col = pieces[0].first_col;
  const int64_t first_group = first_col / group_columns;
  const int64_t num_groups = divide_up(first_col + columns, group_columns) - first_group;
  std::vector<GroupScale> scales(static_cast<size_t>(kPanelColumns * num_groups));
  for (int i = 0; i < kPanelColumns; ++i) {
    const auto& [piece, row] = rows[i];
    if (piece == nullptr) continue;
    piece->decoder->read_scales(piece->file_row(row), first_group, num_groups,
                                &scales[i * num_groups]);
  }

  alignas(64) uint16_t chunk[kChunkColumns / kCodeUnitColumns][kUnitVectors][kVectorWords];
  int64_t read_columns = 0, unit_in_chunk = 0;
  const auto put_scales = [&](int64_t group, const CodeHeader& header) {
    const int64_t column = first_col + group * shape.group_units * kCodeUnitColumns;
    const int64_t of_file = column / group_columns - first_group;
    for (int i = 0; i < kPanelColumns; ++i) put(header, i, scales[i * num_groups + of_file]);
  };
  const auto pack_units = [&](int64_t group, const CodeHeader& header, char* units, int64_t count) {
    put_scales(group, header);
    for (int64_t unit = 0; unit < count; ++unit, ++unit_in_chunk) {
      if (unit_in_chunk * kCodeUnitColumns % kChunkColumns == 0) {
        const int64_t there = std::min(kChunkColumns, columns - read_columns);
        read_chunk(kernels, rows, read_columns, there, &chunk[0][0][0]);
        read_columns += there;
        unit_in_chunk = 0;
      }
      alignas(64) uint16_t joined[kUnitVectors][kVectorWords];
      join_words(shape.kind, chunk[unit_in_chunk], joined);
      std::memcpy(units + unit * shape.unit_bytes, joined, static_cast<size_t>(shape.unit_bytes));
    }
  };
  for_each_group(shape, out, pack_units);
}

CodePanels decoded_shape(const CodePanels& shape) {
  CodePanels decoded = shape;
  decoded.kind = CodeKind::kBFloat16;
  decoded.scales = ScaleKind::kFloat32;
  decoded.offsets_are_zeros = decoded.is_super = decoded.divides_by_factor = false;
  decoded.factor = 1;
  decoded.block_groups = 1;
  set_sizes(decoded);
  return decoded;
}

}  // namespace nanovllm
