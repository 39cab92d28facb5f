// Where codes and scales lie in device memory; needs no device.
#include "backend/cuda/linear/code_layout.h"

#include <gtest/gtest.h>

#include <cstring>

#include "backend/cpu/linear/random_codes_testing.h"

namespace nanovllm::cuda {
namespace {

constexpr DType kAct = DType::kBFloat16;

// Reads a packed part an element at a time, as code_layout.h says.
class PartReader {
 public:
  explicit PartReader(const CodePart& part)
      : part_(part), bytes_(static_cast<size_t>(part.shape.bytes)) {
    pack_codes(part, 0, part.shape.bytes, bytes_.data());
  }

  const std::vector<char>& bytes() const { return bytes_; }

  unsigned code(int row, int col) const {
    const int unit = col / kUnitColumns % kBlockUnits;
    const char* const at = block(row, col) + shape().header_bytes + unit * shape().unit_bytes;
    const int in_unit = col % kUnitColumns, step = in_unit / 16, in_step = in_unit % 16;
    const int r = row % kTileRows;
    const int lane = r % 8 * 4 + in_step % 8 / 2, pair = in_step / 8 * 2 + r / 8;
    const int half = in_step % 2;  // of the pair
    const auto low = [&](int bit, unsigned mask) {
      return word(at, lane * 4 + step) >> bit & mask;
    };
    switch (shape().kind) {
      case CodeKind::kTable4:
        return low(8 * pair + 4 * half, 15);
      case CodeKind::k4:
        return low(4 * pair + 16 * half, 15);
      case CodeKind::k5:
        return low(4 * pair + 16 * half, 15) |
               (word(at, 128 + lane) >> (4 * step + pair + 16 * half) & 1) << 4;
      case CodeKind::k6: {
        const int shift = step % 2 * 8 + 2 * pair + 16 * half;
        return low(4 * pair + 16 * half, 15) | (word(at, 128 + lane * 2 + step / 2) >> shift & 3)
                                                   << 4;
      }
      case CodeKind::kInt8:
      case CodeKind::kE4M3:
        break;
    }
    return word(at, (step / 2 * 32 + lane) * 4 + step % 2 * 2 + pair / 2) >>
               8 * (pair % 2 + 2 * half) &
           255;
  }

  GroupScale scale(int row, int col) const {
    GroupScale got;
    if (shape().is_row_scaled) {
      std::memcpy(&got.scale, bytes_.data() + shape().row_scales_offset() + row * 4, 4);
      return got;
    }
    const bool has_offsets = shape().offsets != OffsetKind::kNone;
    const int in_block = col % kBlockColumns, super = in_block / shape().super_columns;
    const char* const header = block(row, col);
    const int supers = kBlockColumns / shape().super_columns;
    const int size = size_of(shape().scales);
    got.scale = number(header, super, row);
    if (has_offsets) got.offset = number(header + supers * kTileRows * size, super, row);
    if (!shape().is_super) return got;
    const char* const codes = header + (has_offsets ? 2 : 1) * supers * kTileRows * size;
    const int group = in_block / shape().group_columns;
    got.scale_code = static_cast<int8_t>(codes[place(group, row)]);
    const int groups = kBlockColumns / shape().group_columns;
    if (has_offsets) got.offset_code = static_cast<int8_t>(codes[place(groups + group, row)]);
    return got;
  }

 private:
  const CodeShape& shape() const { return part_.shape; }
  static int place(int group, int row) {
    const int r = row % kTileRows;
    return group * kTileRows + r % 8 * 2 + r / 8;
  }
  const char* block(int row, int col) const {
    return bytes_.data() + row / kTileRows * shape().tile_bytes +
           int64_t{col / kBlockColumns} * shape().block_bytes;
  }
  static unsigned word(const char* at, int i) {
    uint32_t word;
    std::memcpy(&word, at + i * 4, 4);
    return word;
  }
  float number(const char* at, int group, int row) const {
    return read_scale(shape().scales, at + place(group, row) * size_of(shape().scales));
  }

  const CodePart& part_;
  std::vector<char> bytes_;
};

void expect_packed(const HostMatrix& matrix) {
  const std::vector<CodePart> parts = plan_code_parts({&matrix, 1}, kAct);
  ASSERT_EQ(parts.size(), 1u);
  const PartReader reader(parts[0]);
  const auto cols = static_cast<int>(matrix.cols);
  std::vector<uint8_t> codes(static_cast<size_t>(cols));
  for (int row = 0; row < matrix.rows; ++row) {
    matrix.decoder->read_codes(matrix.file_row(row), matrix.first_col, cols, codes.data());
    for (int col = 0; col < cols; ++col) {
      ASSERT_EQ(reader.code(row, col), codes[static_cast<size_t>(col)]) << row << ", " << col;
      GroupScale scale;
      const int64_t group = (matrix.first_col + col) / matrix.codes->group_columns;
      matrix.decoder->read_scales(matrix.file_row(row), group, 1, &scale);
      const GroupScale got = reader.scale(row, col);
      ASSERT_EQ(got.scale, scale.scale) << row << ", " << col;
      if (parts[0].shape.offsets != OffsetKind::kNone) {
        ASSERT_EQ(got.offset, scale.offset) << row << ", " << col;
      }
      if (!parts[0].shape.is_super) continue;
      ASSERT_EQ(got.scale_code, scale.scale_code);
      if (parts[0].shape.offsets != OffsetKind::kNone) {
        ASSERT_EQ(got.offset_code, scale.offset_code);
      }
    }
  }
}

TEST(CudaCodeLayout, EveryFormatComesBackBitForBit) {
  for (const auto& [name, format] : kFormats) {
    SCOPED_TRACE(name);
    const int64_t group = format.group_columns == nanovllm::kAll ? 128 : format.group_columns;
    for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{
             {1, group}, {1, 16}, {33, 2 * group}, {9, 1000}}) {
      expect_packed(RandomDecoder(format, rows, cols).matrix());
    }
  }
}

TEST(CudaCodeLayout, ARanksShareThatBeginsWithinAGroupHasSmallerOnes) {
  for (const auto& [name, format] : kFormats) {
    SCOPED_TRACE(name);
    const RandomDecoder decoder(format, 20, 512);
    HostMatrix matrix = decoder.matrix();
    const bool has_groups = format.group_columns != nanovllm::kAll;
    const bool has_bytes = format.layout == WeightLayout::kByte;
    matrix.cols = 304;
    matrix.first_col = 112;  // groups of 16, too small for bytes
    if (has_groups && has_bytes) {
      EXPECT_TRUE(plan_code_parts({&matrix, 1}, kAct).empty());
      matrix.first_col = 96;
    }
    expect_packed(matrix);
    matrix.first_col = 8;  // of 8, kernels have no place for
    EXPECT_EQ(plan_code_parts({&matrix, 1}, kAct).empty(), has_groups);
  }
}

TEST(CudaCodeLayout, AnyRangeOfBytesIsPackedAlone) {
  for (const auto& [name, format] : kFormats) {
    SCOPED_TRACE(name);
    const RandomDecoder decoder(format, 50, 320);
    const HostMatrix matrix = decoder.matrix();
    const std::vector<CodePart> parts = plan_code_parts({&matrix, 1}, kAct);
    const PartReader whole(parts[0]);
    std::vector<char> pieces(whole.bytes().size());
    constexpr int64_t kPiece = 1000;
    for (int64_t begin = 0; begin < std::ssize(pieces); begin += kPiece) {
      pack_codes(parts[0], begin, std::min(kPiece, std::ssize(pieces) - begin),
                 pieces.data() + begin);
    }
    EXPECT_EQ(pieces, whole.bytes());
  }
}

TEST(CudaCodeLayout, NeighboursOfOneFormatAreOnePart) {
  const RandomDecoder a(kFormats[0].format, 10, 64), b(kFormats[0].format, 30, 64),
      c(kFormats[9].format, 4, 64);
  const HostMatrix pieces[] = {a.matrix(), b.matrix(), c.matrix()};
  const std::vector<CodePart> parts = plan_code_parts(pieces, kAct);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].shape.out_features, 40);
  EXPECT_EQ(parts[0].pieces.size(), 2u);
  EXPECT_EQ(parts[1].shape.out_features, 4);
  EXPECT_EQ(code_layout_of(pieces, kAct), WeightLayout::kGroup);
  const HostMatrix unaligned[] = {a.matrix(), c.matrix()};
  EXPECT_TRUE(plan_code_parts(unaligned, kAct).empty()) << "results begin at 20 bytes";
}

TEST(CudaCodeLayout, WhatKernelsHaveNoPlaceForIsNumbers) {
  const RandomDecoder decoder(kFormats[0].format, 4, 64), odd(kFormats[0].format, 4, 60);
  HostMatrix plain = decoder.matrix();
  plain.codes = nullptr;
  const HostMatrix pieces[] = {decoder.matrix(), plain};
  EXPECT_TRUE(plan_code_parts(pieces, kAct).empty()) << "one piece has none";
  EXPECT_EQ(code_layout_of(pieces, kAct), WeightLayout::kPlain);
  const HostMatrix unaligned = odd.matrix(), whole = decoder.matrix();
  EXPECT_TRUE(plan_code_parts({&unaligned, 1}, kAct).empty()) << "K is no multiple of 8";
  EXPECT_TRUE(plan_code_parts({&whole, 1}, DType::kFloat32).empty());
}

}  // namespace
}  // namespace nanovllm::cuda
