#include "io/rounded_matrix.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/code_format_testing.h"
#include "io/coded_matrix.h"
#include "io/testing.h"

namespace nanovllm {
namespace {

using testing::error_of;
constexpr RoundedFormat kRoundedFormats[] = {RoundedFormat::kInt8, RoundedFormat::kInt4,
                                             RoundedFormat::kFp8};

std::vector<float> normal_numbers(size_t count, float scale = 1) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> numbers(count);
  for (float& number : numbers) number = normal(random);
  return numbers;
}

RoundedMatrix round(const std::vector<float>& numbers, int64_t rows, RoundedFormat format) {
  const int64_t cols = static_cast<int64_t>(numbers.size()) / rows;
  return {"m", {numbers.data(), DType::kFloat32, nullptr, rows, cols}, format};
}

std::vector<float> row_of(const MatrixDecoder& matrix, int64_t row, int64_t cols) {
  std::vector<float> numbers(static_cast<size_t>(cols));
  matrix.decode(row, 0, cols, numbers.data());
  return numbers;
}

TEST(RoundedMatrix, CodesAndScalesDecodeToTheSameBits) {
  for (const RoundedFormat format : kRoundedFormats) {
    // Normal ones, and such that scales are next to nothing.
    for (const float scale : {1.0f, 1e4f, 1e-30f, 1e-37f, 1e-42f}) {
      std::vector<float> numbers = normal_numbers(size_t{5} * 96, scale);
      std::fill_n(numbers.begin() + 96, 64, 0.0f);
      test::expect_codes_decode_the_same(round(numbers, 5, format), 5, 96);
    }
  }
  // A row with one scale need not have whole groups.
  const std::vector<float> numbers = normal_numbers(size_t{3} * 41);
  test::expect_codes_decode_the_same(round(numbers, 3, RoundedFormat::kFp8), 3, 41);
  EXPECT_FALSE(RoundedMatrix::can_round(RoundedFormat::kInt4, 41));
  EXPECT_FALSE(RoundedMatrix::can_round(RoundedFormat::kInt8, 48));
  EXPECT_TRUE(RoundedMatrix::can_round(RoundedFormat::kInt8, 64));
}

// No code is nearer to a number than its own, but for the error of a reciprocal.
TEST(RoundedMatrix, NumbersBecomeTheNearestCodes) {
  const std::vector<float> numbers = normal_numbers(size_t{8} * 256);
  for (const RoundedFormat format : kRoundedFormats) {
    const RoundedMatrix matrix = round(numbers, 8, format);
    const CodeFormat& codes = *matrix.code_format();
    for (int64_t row = 0; row < 8; ++row) {
      const std::vector<float> rounded = row_of(matrix, row, 256);
      for (int64_t col = 0; col < 256; ++col) {
        GroupScale scale;
        matrix.read_scales(row, col / codes.group_columns, 1, &scale);
        const float number = numbers[static_cast<size_t>(row * 256 + col)];
        const float distance = std::abs(number - rounded[static_cast<size_t>(col)]);
        const float error = 1e-6f * (std::abs(number) + std::abs(scale.scale));
        for (int code = 0; code < 1 << codes.code_bits; ++code) {
          const float other = test::element_of(codes, static_cast<uint8_t>(code), scale);
          if (std::isnan(other)) continue;
          EXPECT_LE(distance, std::abs(number - other) + error);
        }
      }
    }
  }
}

TEST(RoundedMatrix, ScalesReachTheLargestNumbers) {
  std::vector<float> numbers(64, 0.01f);
  numbers[3] = -2;
  numbers[40] = 1.5f;
  const auto at = [&](RoundedFormat format, size_t col) {
    return row_of(round(numbers, 1, format), 0, 64)[col];
  };
  // A bfloat16 is off by 1 of 256 at most.
  EXPECT_NEAR(at(RoundedFormat::kInt8, 3), -2, 2.0 / 250);
  EXPECT_NEAR(at(RoundedFormat::kInt8, 40), 1.5, 1.5 / 250);
  EXPECT_NEAR(at(RoundedFormat::kFp8, 3), -2, 2.0 / 250);
  EXPECT_NEAR(at(RoundedFormat::kInt4, 3), -2, 0.05);
  EXPECT_NEAR(at(RoundedFormat::kInt4, 40), 1.5, 0.05);
}

TEST(RoundedMatrix, EightBitsHaveTheValuesThatSimpleNumbersNeed) {
  std::vector<float> numbers;
  for (int i = -63; i <= 64; ++i) numbers.push_back(static_cast<float>(i) * 0.25f);
  numbers[0] = numbers[32] = numbers[64] = numbers[96] = 127 * 0.25f;
  EXPECT_EQ(row_of(round(numbers, 1, RoundedFormat::kInt8), 0, 128), numbers);
  // Every E4M3, 448 and subnormal ones among them.
  std::vector<float> all(kFp8Codes.begin(), kFp8Codes.end());
  all[0x7f] = all[0xff] = 448;
  EXPECT_EQ(row_of(round(all, 1, RoundedFormat::kFp8), 0, 256), all);
}

TEST(RoundedMatrix, TiesGoToEvenCodes) {
  std::vector<float> integers(32, 0.0f);
  integers[0] = 127;
  integers[1] = 2.5f;
  integers[2] = 3.5f;
  integers[3] = -2.5f;
  const std::vector<float> rounded = row_of(round(integers, 1, RoundedFormat::kInt8), 0, 32);
  EXPECT_EQ(rounded[1], 2);
  EXPECT_EQ(rounded[2], 4);
  EXPECT_EQ(rounded[3], -2);
  const std::vector<float> floats = {448, 17, 19, 0x1p-10f, 0x3p-10f, -0x1p-10f};
  EXPECT_EQ(row_of(round(floats, 1, RoundedFormat::kFp8), 0, 6),
            (std::vector<float>{448, 16, 20, 0, 0x1p-8f, 0}));
}

// Of 4 bits, what Q4_1 makes of the same numbers, whose minima are numbers of 16 bits, is no
// nearer.
TEST(RoundedMatrix, FourBitsAreAsNearAsQ4_1) {
  const std::vector<float> numbers = normal_numbers(size_t{64} * 1024);
  const RoundedMatrix matrix = round(numbers, 64, RoundedFormat::kInt4);
  double error = 0, error_of_q4_1 = 0;
  for (int64_t row = 0; row < 64; ++row) {
    const std::vector<float> rounded = row_of(matrix, row, 1024);
    for (int64_t group = 0; group < 32; ++group) {
      const float* from = &numbers[static_cast<size_t>(row * 1024 + group * 32)];
      const auto [least, most] = std::minmax_element(from, from + 32);
      const float step = (*most - *least) / 15;
      for (int64_t i = 0; i < 32; ++i) {
        error += std::pow(from[i] - rounded[static_cast<size_t>(group * 32 + i)], 2);
        error_of_q4_1 +=
            std::pow(from[i] - (std::round((from[i] - *least) / step) * step + *least), 2);
      }
    }
  }
  EXPECT_LT(error, error_of_q4_1);
  EXPECT_GT(error, 0.9 * error_of_q4_1);
}

TEST(RoundedMatrix, ScalesHaveTheTypeThatTheNumbersHave) {
  const uint16_t halves[32] = {0x3c00};  // 1
  const RoundedMatrix of_half("m", {halves, DType::kFloat16, nullptr, 1, 32}, RoundedFormat::kInt8);
  EXPECT_EQ(of_half.code_format()->scales, ScaleKind::kFloat16);
  GroupScale scale;
  of_half.read_scales(0, 0, 1, &scale);
  EXPECT_EQ(scale.scale, 0x1.02p-7f);  // the float16 next to 1/127
  const BFloat16 numbers[32] = {to_bfloat16(1)};
  const RoundedMatrix matrix("m", {numbers, DType::kBFloat16, nullptr, 1, 32},
                             RoundedFormat::kInt8);
  EXPECT_EQ(matrix.code_format()->scales, ScaleKind::kBFloat16);
  matrix.read_scales(0, 0, 1, &scale);
  EXPECT_EQ(scale.scale, to_float(to_bfloat16(1.0f / 127)));
}

// Of numbers so large that squares are infinite, the codes are those of small ones.
TEST(RoundedMatrix, LargeNumbersHaveTheCodesOfSmallOnes) {
  const std::vector<float> small = normal_numbers(128);
  std::vector<float> large = small;
  for (float& number : large) number *= 0x1p120f;
  for (const RoundedFormat format : kRoundedFormats) {
    std::vector<float> expected = row_of(round(small, 1, format), 0, 128);
    for (float& number : expected) number *= 0x1p120f;
    EXPECT_EQ(row_of(round(large, 1, format), 0, 128), expected);
  }
}

TEST(RoundedMatrix, TheLargestNumbersAreRoundedAndLargerOnesRefused) {
  for (const RoundedFormat format : kRoundedFormats) {
    std::vector<float> numbers(64, 0.0f);
    numbers[3] = std::nextafter(0x1p126f, 0.0f);
    numbers[5] = -numbers[3];
    const std::vector<float> rounded = row_of(round(numbers, 1, format), 0, 64);
    EXPECT_NEAR(rounded[3] / numbers[3], 1, 0.1);
    EXPECT_NEAR(rounded[5] / numbers[5], 1, 0.1);
    numbers[5] = -0x1p126f;
    const RoundedMatrix matrix = round(numbers, 1, format);
    const Error error = error_of([&] { row_of(matrix, 0, 64); });
    EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
    EXPECT_STREQ(error.what(),
                 "m: row 0 has a number that is too large to be rounded; download the file again, "
                 "or use the model without rounding it");
  }
}

TEST(RoundedMatrix, ReadsWhatAnotherDecoderGives) {
  const std::vector<float> numbers = normal_numbers(64);
  const RoundedMatrix exact = round(numbers, 1, RoundedFormat::kInt8);
  const RoundedMatrix again("m", {.decoder = &exact, .rows = 1, .cols = 64}, RoundedFormat::kInt8);
  EXPECT_EQ(row_of(again, 0, 64), row_of(exact, 0, 64));
}

// Of kFp8, whose scales are of whole rows: also where that is zero.
TEST(RoundedMatrix, ARowIsReadTwiceHoweverManyPartsItHas) {
  class Counting final : public MatrixDecoder {
   public:
    explicit Counting(float number) : number_(number) {}
    void decode(int64_t, int64_t, int64_t count, float* out) const override {
      num_read += count;
      std::fill_n(out, count, number_);
    }
    mutable int64_t num_read = 0;

   private:
    const float number_;
  };
  constexpr int64_t kCols = 4096;
  for (const float number : {0.0f, 1.0f}) {
    const Counting numbers(number);
    const RoundedMatrix matrix("m", {.decoder = &numbers, .rows = 1, .cols = kCols},
                               RoundedFormat::kFp8);
    row_of(matrix, 0, kCols);
    EXPECT_EQ(numbers.num_read, 2 * kCols) << number;
  }
}

TEST(RoundedMatrix, WhatIsNoNumberIsRefusedWithItsPlace) {
  for (const RoundedFormat format : kRoundedFormats) {
    for (const float bad : {INFINITY, -INFINITY, std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> numbers = normal_numbers(128);
      numbers[100] = bad;
      const RoundedMatrix matrix = round(numbers, 2, format);
      row_of(matrix, 0, 64);
      const Error error = error_of([&] { row_of(matrix, 1, 64); });
      EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
      EXPECT_STREQ(error.what(),
                   "m: row 1 has a number that is NaN or infinite; download the file again, or use "
                   "the model without rounding it");
    }
  }
}

}  // namespace
}  // namespace nanovllm
