// Which layout the codes of a matrix have, and codes and scales for it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "io/coded_matrix.h"

namespace nanovllm {
namespace {

// Whether it holds for every number of [rows, cols].
template <typename Predicate>
bool holds_for_all(const NumberGrid& grid, int64_t rows, int64_t cols, Predicate predicate) {
  std::vector<float> numbers(static_cast<size_t>(cols));
  const int64_t step = grid.words_hold_rows ? 1 : grid.shared_rows;
  for (int64_t row = 0; row < rows; row += step) {
    grid.read(row, 0, cols, numbers.data());
    if (!std::ranges::all_of(numbers, predicate)) return false;
  }
  return true;
}

bool is_bfloat16(float number) { return to_float(to_bfloat16(number)) == number; }
bool is_float16(float number) { return half_to_float(float_to_half(number)) == number; }

// The kind of 16 bits that holds all scales without loss. What is no number is refused where it is
// read.
std::optional<ScaleKind> small_kind_of(const NumberGrid& scales, int64_t rows, int64_t cols) {
  switch (scales.type) {
    case NumberGrid::Type::kFloat16:
      return ScaleKind::kFloat16;
    case NumberGrid::Type::kFloat32: {
      const auto is_held_by = [&](bool (*holds)(float)) {
        return holds_for_all(scales, rows, cols,
                             [=](float scale) { return !std::isfinite(scale) || holds(scale); });
      };
      if (is_held_by(is_bfloat16)) return ScaleKind::kBFloat16;
      if (is_held_by(is_float16)) return ScaleKind::kFloat16;
      return std::nullopt;
    }
    case NumberGrid::Type::kBFloat16:
    case NumberGrid::Type::kBytes:  // E4M3 and E8M0
    case NumberGrid::Type::kWordsOf4Bits:
    case NumberGrid::Type::kWordsOf8Bits:
      return ScaleKind::kBFloat16;
  }
  return std::nullopt;
}

ScaleKind kind_of(const NumberGrid& scales) {
  return scales.type == NumberGrid::Type::kFloat32   ? ScaleKind::kFloat32
         : scales.type == NumberGrid::Type::kFloat16 ? ScaleKind::kFloat16
                                                     : ScaleKind::kBFloat16;
}

// Columns of a group that divides a block, which may be larger than any group; 0 = there is none.
int64_t group_of(const CodedMatrix& matrix, bool has_bytes) {
  if (matrix.block_cols >= matrix.cols) return has_bytes ? matrix.cols : 128;
  for (const int64_t columns : {128, 64, 32, 16}) {
    if (matrix.block_cols % columns == 0) return columns;
  }
  return 0;
}

}  // namespace

void CodedMatrix::choose_layout() {
  const bool has_bytes = codes.type != NumberGrid::Type::kWordsOf4Bits;
  const bool is_integer = codes.values == &kUnsignedCodes || codes.values == &kSignedCodes;
  CodeFormat format = {.layout = has_bytes ? WeightLayout::kByte : WeightLayout::kGroup,
                       .code_bits = has_bytes ? 8 : 4,
                       .values = codes.values->data(),
                       .group_columns = group_of(*this, has_bytes),
                       .factor = global_scale,
                       .divides_by_factor = divides_by_global_scale};
  if (!block_of_col.empty()) {
    no_layout_because = "groups of columns are shuffled (g_idx)";
    return;
  }
  if (format.group_columns == 0) {
    no_layout_because = fmt::format("groups have {} columns, no multiple of 16", block_cols);
    return;
  }
  const auto kind = has_bytes ? kind_of(scales) : small_kind_of(scales, rows, num_blocks());
  if (!kind) {
    no_layout_because = "scales are float32 that neither float16 nor bfloat16 holds";
    return;
  }
  format.scales = *kind;
  float one_zero = zero;
  bool is_one_zero = true;
  if (zeros.data != nullptr) {
    zeros.read(0, 0, 1, &one_zero);
    is_one_zero = holds_for_all(zeros, rows, num_blocks(), [=](float z) { return z == one_zero; });
  }
  if (!is_integer && !(is_one_zero && one_zero == 0)) {
    no_layout_because = "floating-point codes have zero points";
    return;
  }
  if (has_bytes && codes.values == &kUnsignedCodes) {
    flips_top_bit = true;
    format.values = kSignedCodes.data();
    one_zero -= 128;
  } else if (is_integer && !has_bytes && is_one_zero && one_zero == 8) {
    format.values = kInt4Codes.data();
    one_zero = 0;
  }
  if (!is_one_zero || one_zero != 0) format.offset = CodeFormat::Offset::kZero;
  layout = format;
}

void CodedMatrix::read_codes(int64_t row, int64_t col, int64_t count, uint8_t* out) const {
  codes.read_codes(row, col, count, out);
  for (int64_t i = 0; flips_top_bit && i < count; ++i) out[i] ^= 0x80;
  if (codes.values != &kFp8Codes) return;
  const auto is_nan = [](uint8_t code) { return (code & 0x7f) == 0x7f; };
  int64_t num_nan = 0;
  for (int64_t i = 0; i < count; ++i) num_nan += is_nan(out[i]) ? 1 : 0;
  for (int64_t i = 0; num_nan > 0; ++i) {
    if (is_nan(out[i])) refuse_nan(row, col + i);
  }
}

void CodedMatrix::read_scales(int64_t row, int64_t first, int64_t count, GroupScale* out) const {
  NANOVLLM_CHECK(layout.has_value());
  const bool has_zero = layout->offset == CodeFormat::Offset::kZero;
  for (int64_t i = 0; i < count; ++i) {
    const Block block = read_block(row, (first + i) * layout->group_columns / block_cols);
    out[i] = {.scale = block.stored_scale,
              .offset = has_zero ? block.zero - (flips_top_bit ? 128.0f : 0.0f) : 0.0f};
  }
}

}  // namespace nanovllm
