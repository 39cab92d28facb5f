#include "io/coded_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "io/json.h"

namespace nanovllm {
namespace {

template <typename Value>
constexpr CodeValues table_of(Value value) {
  CodeValues values{};
  for (int code = 0; code < 256; ++code) values[static_cast<size_t>(code)] = value(code);
  return values;
}

constexpr float fp8_value(int code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  uint32_t bits = static_cast<uint32_t>(((exponent + 120) << 23) | (mantissa << 20));
  if (exponent == 0) bits = std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-9f);
  if ((code & 0x7f) == 0x7f) bits = 0x7fc00000u;
  return std::bit_cast<float>(bits | static_cast<uint32_t>(code & 0x80) << 24);
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

float scale_of(const CodedMatrix& matrix, int64_t row, int64_t block) {
  float scale = matrix.scales.at(row, block);
  scale =
      matrix.divides_by_global_scale ? scale / matrix.global_scale : scale * matrix.global_scale;
  if (!std::isfinite(scale)) {
    throw_error(ErrorCode::kCorruptData, "tensor {}: the scale of row {}, block {} is {}",
                printable(matrix.name), row, block, scale);
  }
  return scale;
}

float zero_of(const CodedMatrix& matrix, int64_t row, int64_t block) {
  if (matrix.zero_words.data) return static_cast<float>(matrix.zero_words.at(row, block));
  return matrix.zeros.data ? matrix.zeros.at(row, block) : matrix.zero;
}

}  // namespace

constinit const CodeValues kUnsignedCodes = table_of([](int c) { return static_cast<float>(c); });
constinit const CodeValues kSignedCodes =
    table_of([](int c) { return static_cast<float>(c < 128 ? c : c - 256); });
constinit const CodeValues kFp8Codes = table_of(fp8_value);
constinit const CodeValues kFp4Codes = table_of(fp4_value);
constinit const CodeValues kModelOptFp4Codes = table_of([](int c) { return fp4_value(c) + 0.0f; });

float BlockNumbers::at(int64_t row, int64_t block) const {
  const int64_t i = row / block_rows * row_stride + block * col_stride;
  switch (type) {
    case Type::kFloat32:
      return load<float>(data, i);
    case Type::kBFloat16:
      return to_float(load<BFloat16>(data, i));
    case Type::kFloat16:
      return half_to_float(load<uint16_t>(data, i));
    case Type::kFp8:
      return kFp8Codes[load<uint8_t>(data, i)];
    case Type::kInt8:
      return load<int8_t>(data, i);
  }
  return 0;
}

inline uint32_t PackedWords::at(int64_t row, int64_t col) const {
  constexpr uint8_t kAwqOrder[] = {0, 4, 1, 5, 2, 6, 3, 7};
  const int64_t word = (row >> row_shift) * row_stride + (col >> col_shift) * col_stride;
  int64_t place = (row & ((1 << row_shift) - 1)) + (col & ((1 << col_shift) - 1));
  if (is_awq_order) place = kAwqOrder[place];
  return (load<uint32_t>(data, word) + addend) >> (num_bits * place) & ((1u << num_bits) - 1);
}

void CodedMatrix::decode(int64_t row, int64_t col, int64_t count, float* out) const {
  const auto block_at = [&](int64_t c) {
    return block_of_col ? load<int32_t>(block_of_col, c) : c / block_cols;
  };
  struct Numbers {
    int64_t block = -1;
    float scale = 0, zero = 0;
  };
  // Where blocks are no neighbours, a column seldom is of the same one as the column before.
  std::vector<Numbers> met(block_of_col ? 256 : 1);
  const auto* row_codes = reinterpret_cast<const uint8_t*>(codes) + row * row_bytes;
  const float* value = values->data();
  for (const int64_t end = col + count; col < end;) {
    const int64_t block = block_at(col);
    const int64_t next = block_of_col ? col + 1 : std::min(end, (block + 1) * block_cols);
    Numbers& numbers = met[static_cast<size_t>(block) & (met.size() - 1)];
    if (numbers.block != block) {
      numbers = {block, scale_of(*this, row, block), zero_of(*this, row, block)};
    }
    const float scale = numbers.scale, offset = numbers.zero;
    if (words.data != nullptr) {
      for (; col < next; ++col) *out++ = (value[words.at(row, col)] - offset) * scale;
    } else if (num_bits == 8) {
      for (; col < next; ++col) *out++ = (value[row_codes[col]] - offset) * scale;
    } else {
      for (; col < next; ++col) {
        *out++ = (value[row_codes[col / 2] >> (col % 2 * 4) & 15] - offset) * scale;
      }
    }
  }
}

}  // namespace nanovllm
