#include "io/coded_matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"

namespace nanovllm {
namespace {

template <typename Value>
constexpr CodeValues table_of(Value value) {
  CodeValues values{};
  for (int code = 0; code < 256; ++code) values[static_cast<size_t>(code)] = value(code);
  return values;
}

constexpr float fp4_value(int code) {
  constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return (code & 8) != 0 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
}

template <typename T>
T load(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<int64_t>(sizeof value), sizeof value);
  return value;
}

// out[i] = convert(the code of column col + i)
template <int kBits, typename Out, typename Convert>
void read_words(const NumberGrid& grid, int64_t row, int64_t col, int64_t count, Out* out,
                Convert convert) {
  constexpr uint64_t kInWord = 32 / kBits;
  constexpr uint8_t kAwqOrder[] = {0, 4, 1, 5, 2, 6, 3, 7};
  const std::byte* words = grid.data + row / grid.shared_rows * grid.row_stride * 4;
  const uint32_t addend = grid.addend;
  const auto code = [&](int64_t word, uint64_t place) {
    return (load<uint32_t>(words, word) + addend) >> (place * kBits) & ((1u << kBits) - 1);
  };
  const int64_t stride = grid.col_stride;
  if (grid.words_hold_rows) {
    uint64_t place = static_cast<uint64_t>(row) % kInWord;
    if (grid.is_awq_order) place = kAwqOrder[place];
    for (int64_t i = 0; i < count; ++i) out[i] = convert(code((col + i) * stride, place));
    return;
  }
  for (uint64_t c = static_cast<uint64_t>(col), end = c + static_cast<uint64_t>(count); c < end;
       ++c) {
    *out++ = convert(code(static_cast<int64_t>(c / kInWord) * stride, c % kInWord));
  }
}

// Of a grid of codes.
template <typename Out, typename Convert>
void read_each_code(const NumberGrid& grid, int64_t row, int64_t col, int64_t count, Out* out,
                    Convert convert) {
  if (grid.type == NumberGrid::Type::kWordsOf4Bits) {
    read_words<4>(grid, row, col, count, out, convert);
  } else if (grid.type == NumberGrid::Type::kWordsOf8Bits) {
    read_words<8>(grid, row, col, count, out, convert);
  } else {
    const int64_t first = row / grid.shared_rows * grid.row_stride;
    for (int64_t c = col; c < col + count; ++c) {
      *out++ = convert(load<uint8_t>(grid.data, first + c * grid.col_stride));
    }
  }
}

// What no code's value less a zero point is beyond.
float largest_code(const NumberGrid& codes) {
  if (codes.values == &kFp8Codes) return 448;
  return codes.values == &kFp4Codes || codes.values == &kModelOptFp4Codes ? 6 : 256;
}

}  // namespace

constinit const CodeValues kUnsignedCodes = table_of([](int c) { return static_cast<float>(c); });
constinit const CodeValues kSignedCodes =
    table_of([](int c) { return static_cast<float>(c < 128 ? c : c - 256); });
constinit const CodeValues kInt4Codes = table_of([](int c) { return static_cast<float>(c - 8); });
constinit const CodeValues kFp8Codes =
    table_of([](int c) { return e4m3_to_float(static_cast<uint8_t>(c)); });
constinit const CodeValues kFp4Codes = table_of(fp4_value);
constinit const CodeValues kModelOptFp4Codes = table_of([](int c) { return fp4_value(c) + 0.0f; });
constinit const CodeValues kE8m0Codes = table_of([](int c) {
  return std::bit_cast<float>(c == 0 ? 0x400000u : static_cast<uint32_t>(c) << 23);
});

void NumberGrid::read(int64_t row, int64_t col, int64_t count, float* out) const {
  const int64_t first = row / shared_rows * row_stride;
  const auto read_each = [&](auto number) {
    for (int64_t c = col; c < col + count; ++c) *out++ = number(first + c * col_stride);
  };
  switch (type) {
    case Type::kFloat32:
      return read_each([&](int64_t i) { return load<float>(data, i); });
    case Type::kBFloat16:
      return read_each([&](int64_t i) { return to_float(load<BFloat16>(data, i)); });
    case Type::kFloat16:
      return read_each([&](int64_t i) { return half_to_float(load<uint16_t>(data, i)); });
    case Type::kBytes:
    case Type::kWordsOf4Bits:
    case Type::kWordsOf8Bits:
      return read_each_code(*this, row, col, count, out,
                            [table = values->data()](uint32_t code) { return table[code]; });
  }
}

void NumberGrid::read_codes(int64_t row, int64_t col, int64_t count, uint8_t* out) const {
  NANOVLLM_CHECK(has_codes());
  read_each_code(*this, row, col, count, out,
                 [](uint32_t code) { return static_cast<uint8_t>(code); });
}

CodedMatrix::Block CodedMatrix::read_block(int64_t row, int64_t block) const {
  Block numbers{.zero = zero};
  scales.read(row, block, 1, &numbers.stored_scale);
  if (zeros.data != nullptr) zeros.read(row, block, 1, &numbers.zero);
  const float stored = numbers.stored_scale;
  numbers.scale = divides_by_global_scale ? stored / global_scale : stored * global_scale;
  if (!std::isfinite(numbers.scale * largest_code(codes))) {
    throw_error(ErrorCode::kCorruptData,
                "{}: the scale of row {}, block {} is {}; download the file again", place, row,
                block, numbers.scale);
  }
  return numbers;
}

void CodedMatrix::refuse_nan(int64_t row, int64_t col) const {
  throw_error(ErrorCode::kCorruptData,
              "{}: the code of row {}, column {} is NaN; download the file again", place, row, col);
}

void CodedMatrix::decode(int64_t row, int64_t col, int64_t count, float* out) const {
  // Where blocks are no neighbours, a column seldom is of the same one as the column before.
  const bool in_order = block_of_col.empty();
  std::vector<Block> blocks;
  for (int64_t block = 0; !in_order && block < num_blocks(); ++block) {
    blocks.push_back(read_block(row, block));
  }
  codes.read(row, col, count, out);
  int64_t num_nan = 0;
  for (int64_t i = 0; i < count; ++i) num_nan += std::isnan(out[i]) ? 1 : 0;
  for (int64_t i = 0; num_nan > 0; ++i) {
    if (std::isnan(out[i])) refuse_nan(row, col + i);
  }
  for (const int64_t end = col + count; col < end;) {
    const int64_t block = in_order ? col / block_cols : block_of_col[static_cast<size_t>(col)];
    const int64_t next = in_order ? std::min(end, (block + 1) * block_cols) : col + 1;
    const Block numbers = in_order ? read_block(row, block) : blocks[static_cast<size_t>(block)];
    for (; col < next; ++col, ++out) *out = (*out - numbers.zero) * numbers.scale;
  }
}

}  // namespace nanovllm
