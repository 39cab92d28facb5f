// What codes and scales stand for, an element at a time.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/matrix_decoder.h"

namespace nanovllm::test {

// The formula of base/code_format.h. No compiler may fuse what is rounded twice.
inline float element_of(const CodeFormat& format, uint8_t code, const GroupScale& group) {
  const float value = format.values[code];
  volatile float scale =
      format.divides_by_factor ? group.scale / format.factor : group.scale * format.factor;
  volatile float minimum = group.offset;
  if (format.layout == WeightLayout::kSuper) {
    scale = group.scale * static_cast<float>(group.scale_code);
    minimum = -(group.offset * static_cast<float>(group.offset_code));
  }
  if (format.offset == CodeFormat::Offset::kZero) {
    volatile float difference = value - group.offset;
    return scale * difference;
  }
  volatile float product = scale * value;
  return format.offset == CodeFormat::Offset::kMinimum ? product + minimum : product;
}

// Elements [col, col + count) of a row from the decoder's codes and scales.
inline std::vector<float> elements_from_codes(const MatrixDecoder& decoder, int64_t row,
                                              int64_t col, int64_t count) {
  const CodeFormat& format = *decoder.code_format();
  const int64_t first = col / format.group_columns;
  const int64_t last = (col + count + format.group_columns - 1) / format.group_columns;
  std::vector<GroupScale> groups(static_cast<size_t>(last - first));
  decoder.read_scales(row, first, last - first, groups.data());
  std::vector<uint8_t> codes(static_cast<size_t>(count));
  decoder.read_codes(row, col, count, codes.data());
  std::vector<GroupScale> same_groups(groups.size());
  std::vector<uint8_t> same_codes(codes.size());
  decoder.read_codes_and_scales(row, col, count, same_codes.data(), same_groups.data());
  EXPECT_EQ(same_codes, codes);
  EXPECT_EQ(same_groups, groups);
  std::vector<float> elements(codes.size());
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_LT(codes[at], 1 << format.code_bits);
    elements[at] = element_of(
        format, codes[at], groups[static_cast<size_t>((col + i) / format.group_columns - first)]);
  }
  return elements;
}

// Codes and scales give decode()'s bits: in whole rows, in one element and in parts that begin and
// end inside of groups.
inline void expect_codes_decode_the_same(const MatrixDecoder& decoder, int64_t rows, int64_t cols) {
  ASSERT_NE(decoder.code_format(), nullptr);
  const int64_t cuts[] = {0, 1, cols / 3, cols / 2, cols - 1, cols};
  for (int64_t row = 0; row < rows; ++row) {
    for (const int64_t col : cuts) {
      for (const int64_t end : cuts) {
        if (end <= col) continue;
        std::vector<float> decoded(static_cast<size_t>(end - col));
        decoder.decode(row, col, end - col, decoded.data());
        const std::vector<float> elements = elements_from_codes(decoder, row, col, end - col);
        for (size_t i = 0; i < decoded.size(); ++i) {
          ASSERT_EQ(std::bit_cast<uint32_t>(elements[i]), std::bit_cast<uint32_t>(decoded[i]))
              << "row " << row << ", element " << i << " from " << col << ": " << elements[i]
              << " for " << decoded[i];
        }
      }
    }
  }
}

}  // namespace nanovllm::test
