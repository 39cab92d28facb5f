// Random weights in codes of every format that there is a layout for.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "backend/cpu/linear/linear_pack.h"
#include "base/code_format_testing.h"
#include "base/dtype.h"
#include "ops/host_matrix.h"

namespace nanovllm {

using Offset = CodeFormat::Offset;
constexpr WeightLayout kGroup = WeightLayout::kGroup, kByte = WeightLayout::kByte,
                       kSuper = WeightLayout::kSuper;
constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16;
using enum ScaleKind;
constexpr int64_t kAll = int64_t{1} << 20;

inline std::vector<float> whole_numbers(int bits, int first) {
  std::vector<float> values(size_t{1} << bits);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(first) + i;
  return values;
}

inline std::vector<float> signed_bytes() {
  std::vector<float> values;
  for (int i = 0; i < 256; ++i) values.push_back(static_cast<float>(static_cast<int8_t>(i)));
  return values;
}

inline std::vector<float> e4m3() {
  std::vector<float> values;
  for (int i = 0; i < 256; ++i) values.push_back(e4m3_to_float(static_cast<uint8_t>(i)));
  return values;
}

inline const std::vector<float> kNibbles = whole_numbers(4, 0),
                                kSignedNibbles = whole_numbers(4, -8),
                                kFives = whole_numbers(5, -16), kSixes = whole_numbers(6, -32),
                                kBytes = signed_bytes(), kE4M3 = e4m3(),
                                kTable = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};

struct NamedFormat {
  const char* name;
  CodeFormat format;
};
inline const NamedFormat kFormats[] = {
    {"Q4_0", {kGroup, 4, kSignedNibbles.data(), 32}},
    {"Q4_1", {kGroup, 4, kNibbles.data(), 32, 0, kFloat16, Offset::kMinimum}},
    {"Q5_0", {kGroup, 5, kFives.data(), 32}},
    {"Q5_1", {kGroup, 5, kFives.data(), 32, 0, kFloat16, Offset::kMinimum}},
    {"IQ4_NL", {kGroup, 4, kTable.data(), 32}},
    {"MXFP4", {kGroup, 4, kTable.data(), 32, 0, kBFloat16}},
    {"NVFP4", {kGroup, 4, kTable.data(), 16, 0, kBFloat16, Offset::kNone, 3, true}},
    {"AWQ", {kGroup, 4, kNibbles.data(), 128, 0, kFloat16, Offset::kZero}},
    {"Int4", {kGroup, 4, kSignedNibbles.data(), 64, 0, kBFloat16, Offset::kNone, 1.5f}},
    {"Q8_0", {kByte, 8, kBytes.data(), 32}},
    {"Int8WithZero", {kByte, 8, kBytes.data(), 128, 0, kBFloat16, Offset::kZero}},
    {"FP8OfColumns", {kByte, 8, kE4M3.data(), kAll, 0, kFloat32}},
    {"FP8OfTiles", {kByte, 8, kE4M3.data(), 128, 0, kFloat32}},
    {"Q2_K", {kSuper, 4, kNibbles.data(), 16, 256, kFloat16, Offset::kMinimum}},
    {"Q3_K", {kSuper, 4, kSignedNibbles.data(), 16, 256}},
    {"Q4_K", {kSuper, 4, kNibbles.data(), 32, 256, kFloat16, Offset::kMinimum}},
    {"Q5_K", {kSuper, 5, kFives.data(), 32, 256, kFloat16, Offset::kMinimum}},
    {"Q6_K", {kSuper, 6, kSixes.data(), 16, 256}},
    {"IQ4_XS", {kSuper, 4, kTable.data(), 32, 256}},
};

// Random codes and scales, among them zeros, that are the same whenever they are read.
class RandomDecoder final : public MatrixDecoder {
 public:
  RandomDecoder(const CodeFormat& format, int64_t rows, int64_t cols)
      : format_(format), cols_(cols) {
    std::mt19937 rng(static_cast<uint32_t>(rows * 131 + cols));
    codes_.resize(static_cast<size_t>(rows * cols));
    // All of them, then random ones.
    for (size_t i = 0; i < codes_.size(); ++i) {
      const unsigned code = i < 256 ? static_cast<unsigned>(i) : rng();
      codes_[i] = static_cast<uint8_t>(code & ((1u << format.code_bits) - 1));
      // NaN has no place in a panel: decoders of files refuse it before it is packed.
      if (std::isnan(format.values[codes_[i]])) codes_[i] = 0;
    }
    num_groups_ = divide_up(cols, format.group_columns);
    const int64_t super_groups =
        format.layout == kSuper ? format.super_columns / format.group_columns : 1;
    for (int64_t i = 0; i < rows * num_groups_; ++i) {
      GroupScale scale;
      if (i % num_groups_ % super_groups == 0) {
        scale.scale = rng() % 8 == 0 ? 0 : static_cast<float>(rng() % 255 + 1) / 4096;
        if (rng() % 4 == 0) scale.scale = -scale.scale;
        if (format.offset == Offset::kMinimum) scale.offset = static_cast<float>(rng() % 99) / 64;
        // Those of bytes are of either sign.
        if (format.offset == Offset::kZero) {
          scale.offset = format.code_bits == 8 ? static_cast<float>(rng() % 256) - 128
                                               : static_cast<float>(rng() % 16);
        }
      } else {
        scale.scale = scales_.back().scale;
        scale.offset = scales_.back().offset;
      }
      if (format.layout == kSuper) {
        scale.scale_code = static_cast<int8_t>(rng());
        scale.offset_code = static_cast<int8_t>(rng());
      }
      scales_.push_back(scale);
    }
  }

  void decode(int64_t row, int64_t col, int64_t count, float* out) const override {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t c = col + i;
      out[i] = test::element_of(format_, codes_[row * cols_ + c],
                                scales_[row * num_groups_ + c / format_.group_columns]);
    }
  }
  const CodeFormat* code_format() const override { return &format_; }
  void read_codes(int64_t row, int64_t col, int64_t count, uint8_t* out) const override {
    std::copy_n(codes_.begin() + row * cols_ + col, count, out);
  }
  void read_scales(int64_t row, int64_t first, int64_t count, GroupScale* out) const override {
    ASSERT_LE(first + count, num_groups_);
    std::copy_n(scales_.begin() + row * num_groups_ + first, count, out);
  }

  HostMatrix matrix() const {
    return {.rows = std::ssize(codes_) / cols_,
            .cols = cols_,
            .row_stride = cols_,
            .decoder = this,
            .codes = &format_};
  }

 private:
  const CodeFormat format_;
  const int64_t cols_;
  int64_t num_groups_;
  std::vector<uint8_t> codes_;
  std::vector<GroupScale> scales_;
};

}  // namespace nanovllm
