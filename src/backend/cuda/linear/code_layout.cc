#include "backend/cuda/linear/code_layout.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "base/dtype.h"

namespace nanovllm::cuda {
namespace {

constexpr int kPairRows = 2, kRowPairs = kTileRows / kPairRows;
// Whole numbers become bfloat16 between 128 and 256, from which a whole number is taken.
constexpr float kLeastFirstValue = -64;

int64_t blocks_in(int64_t size, int64_t block) { return (size + block - 1) / block; }

// Whether the values are whole numbers one after the other.
bool are_whole_numbers(const CodeFormat& format) {
  const float first = format.values[0];
  if (std::floor(first) != first || first > 0 || first < kLeastFirstValue) return false;
  for (int code = 0; code < 1 << format.code_bits; ++code) {
    if (format.values[code] != first + static_cast<float>(code)) return false;
  }
  return true;
}

std::optional<CodeKind> kind_of_bytes(const CodeFormat& format) {
  if (are_int8(format)) return CodeKind::kInt8;
  if (are_e4m3(format)) return CodeKind::kE4M3;
  return std::nullopt;
}

std::optional<CodeKind> code_kind_of(const CodeFormat& format) {
  if (format.code_bits == 8) return kind_of_bytes(format);
  const bool is_whole = are_whole_numbers(format);
  if (format.code_bits == 4) return is_whole ? CodeKind::k4 : CodeKind::kTable4;
  if (format.code_bits == 5 && is_whole) return CodeKind::k5;
  if (format.code_bits == 6 && is_whole) return CodeKind::k6;
  return std::nullopt;
}

std::optional<OffsetKind> offset_kind_of(const CodeFormat& format, CodeKind kind) {
  const bool has_factor = format.factor != 1;
  switch (format.offset) {
    case CodeFormat::Offset::kNone:
      return OffsetKind::kNone;
    case CodeFormat::Offset::kMinimum:
      // Products are multiplied by the factor, and minima are not. Of 6 bits no format has any.
      return has_factor || (kind != CodeKind::k4 && kind != CodeKind::k5)
                 ? std::nullopt
                 : std::optional(OffsetKind::kAdded);
    case CodeFormat::Offset::kZero:
      if (kind == CodeKind::kInt8) return OffsetKind::kScaledTaken;
      return kind == CodeKind::k4 ? std::optional(OffsetKind::kTaken) : std::nullopt;
  }
  return std::nullopt;
}

int header_bytes_of(const CodeShape& shape) {
  if (shape.is_row_scaled) return 0;
  const int kinds = shape.offsets == OffsetKind::kNone ? 1 : 2;
  const int groups = kBlockColumns / shape.group_columns;
  const int scale_bytes = size_of(shape.scales);
  const int rows = kRowPairs * kPairRows;
  if (!shape.is_super) return kinds * groups * rows * scale_bytes;
  return kinds * rows * (kBlockColumns / shape.super_columns * scale_bytes + groups);
}

std::optional<CodeShape> plan_piece(const HostMatrix& piece) {
  // Rows of activations are read 16 bytes at a time.
  if (piece.codes == nullptr || piece.cols % 8 != 0) return std::nullopt;
  const CodeFormat& format = *piece.codes;
  const auto kind = code_kind_of(format);
  if (!kind) return std::nullopt;
  const auto offsets = offset_kind_of(format, *kind);
  if (!offsets) return std::nullopt;
  const int64_t whole = std::max(piece.row_stride, piece.first_col + piece.cols);
  const bool is_one_group = format.group_columns >= whole;
  CodeShape shape;
  shape.kind = *kind;
  shape.scales = format.scales;
  shape.offsets = *offsets;
  shape.is_super = format.layout == WeightLayout::kSuper;
  shape.is_row_scaled =
      is_one_group && format.layout == WeightLayout::kByte && *offsets == OffsetKind::kNone;
  shape.factor = format.factor;
  shape.divides_by_factor = format.divides_by_factor;
  if (*kind == CodeKind::k4 || *kind == CodeKind::k5 || *kind == CodeKind::k6) {
    shape.first_value = static_cast<int>(format.values[0]);
  }
  // A rank's share may begin within a group of the file's: it has the scale several times then.
  const auto in_block = [&](int64_t columns) {
    const int64_t of_file = is_one_group ? kBlockColumns : std::gcd(piece.first_col, columns);
    return static_cast<int>(std::gcd(of_file, int64_t{kBlockColumns}));
  };
  shape.group_columns = in_block(format.group_columns);
  shape.super_columns = shape.is_super ? in_block(format.super_columns) : shape.group_columns;
  if (shape.group_columns < 16) return std::nullopt;
  shape.group_shift = std::countr_zero(static_cast<unsigned>(shape.group_columns));
  shape.super_shift = std::countr_zero(static_cast<unsigned>(shape.super_columns));
  shape.in_features = static_cast<int>(piece.cols);
  shape.num_units = static_cast<int>(blocks_in(piece.cols, kUnitColumns));
  shape.num_blocks = static_cast<int>(blocks_in(shape.num_units, kBlockUnits));
  shape.header_bytes = header_bytes_of(shape);
  shape.unit_bytes = unit_bytes_of(shape.kind);
  // Two steps of bytes and their scales must find room in 99 KiB, whatever the device has.
  constexpr int kMostScalesOfBytes = 512, kLeastGroupOfBytes = 32;
  if (shape.unit_bytes == unit_bytes_of(CodeKind::kInt8) &&
      (shape.header_bytes > kMostScalesOfBytes || shape.group_columns < kLeastGroupOfBytes)) {
    return std::nullopt;
  }
  shape.block_bytes = shape.header_bytes + kBlockUnits * shape.unit_bytes;
  shape.tile_bytes =
      int64_t{shape.num_blocks} * shape.header_bytes + int64_t{shape.num_units} * shape.unit_bytes;
  if (shape.kind == CodeKind::kTable4) {
    for (int i = 0; i < 16; ++i) shape.table[i] = to_bfloat16(format.values[i]).bits;
  }
  return shape;
}

void set_rows(CodeShape& shape, int64_t rows) {
  shape.out_features = static_cast<int>(rows);
  shape.num_tiles = static_cast<int>(blocks_in(rows, kTileRows));
  shape.bytes = shape.row_scales_offset();
  if (shape.is_row_scaled) shape.bytes += int64_t{shape.num_tiles} * kTileRows * 4;
}

}  // namespace

std::vector<CodePart> plan_code_parts(std::span<const HostMatrix> pieces, DType act) {
  if (act != DType::kBFloat16) return {};
  std::vector<CodePart> parts;
  while (!pieces.empty()) {
    const auto shape = plan_piece(pieces[0]);
    if (!shape) return {};
    size_t count = 1;
    int64_t rows = pieces[0].rows;
    for (; count < pieces.size() && have_equal_codes(pieces[0], pieces[count]); ++count) {
      rows += pieces[count].rows;
    }
    parts.push_back({*shape, pieces.first(count)});
    set_rows(parts.back().shape, rows);
    pieces = pieces.subspan(count);
    // What follows begins at a multiple of 16 bytes in a row of results.
    if (!pieces.empty() && rows % 8 != 0) return {};
  }
  return parts;
}

WeightLayout code_layout_of(const Experts& experts, DType act) {
  const auto one_layout = [&](Matrix Dense::*matrix) {
    std::vector<HostMatrix> pieces;
    for (const Dense& expert : experts.experts) {
      const auto& own = (expert.*matrix).pieces;
      pieces.insert(pieces.end(), own.begin(), own.end());
    }
    const bool is_whole = (experts.experts.front().*matrix).out_features() % kTileRows == 0;
    const bool is_one = is_whole && plan_code_parts(pieces, act).size() == 1;
    return is_one ? pieces[0].codes->layout : WeightLayout::kPlain;
  };
  const WeightLayout gate_up = one_layout(&Dense::gate_up), down = one_layout(&Dense::down);
  return down == WeightLayout::kPlain ? WeightLayout::kPlain : gate_up;
}

WeightLayout code_layout_of(std::span<const HostMatrix> pieces, DType act) {
  const std::vector<CodePart> parts = plan_code_parts(pieces, act);
  if (parts.empty()) return WeightLayout::kPlain;
  const auto bytes = [](const CodePart& part) { return part.shape.bytes; };
  return std::ranges::max_element(parts, {}, bytes)->pieces[0].codes->layout;
}

}  // namespace nanovllm::cuda
