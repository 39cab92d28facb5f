// Plain numbers as codes and scales, by rounding to nearest: no data of a model's use is needed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/matrix_decoder.h"

namespace nanovllm {

// What compressed-tensors' int-quantized, pack-quantized and float-quantized hold:
//   kInt8  -127 to 127, a scale for 32 columns
//   kInt4  0 to 15, a scale and a zero point for 32 columns
//   kFp8   E4M3, a scale a row
// Scales are float16 where the numbers are, else bfloat16.
enum class RoundedFormat { kInt8, kInt4, kFp8 };
// Of "int8", "int4" and "fp8".
std::optional<RoundedFormat> parse_rounded_format(std::string_view name);

class RoundedMatrix final : public MatrixDecoder {
 public:
  static constexpr int64_t kGroupColumns = 32;  // of integers

  // What is rounded. It outlives the matrix.
  struct Numbers {
    const void* data = nullptr;  // [rows, cols] in rows without gaps, at any address
    DType dtype = DType::kBFloat16;
    const MatrixDecoder* decoder = nullptr;  // instead of data
    int64_t rows = 0;
    int64_t cols = 0;
  };

  // Whether rows so long have whole groups.
  static bool can_round(RoundedFormat format, int64_t cols) {
    return format == RoundedFormat::kFp8 || cols % kGroupColumns == 0;
  }
  // `place`, for messages: FILE: tensor NAME.
  RoundedMatrix(std::string place, const Numbers& numbers, RoundedFormat format);

  // All throw Error(kCorruptData) where a number is NaN, infinite or 2^126 and more.
  void decode(int64_t row, int64_t col, int64_t count, float* out) const override;
  const CodeFormat* code_format() const override { return &layout_; }
  void read_codes(int64_t row, int64_t col, int64_t count, uint8_t* out) const override;
  void read_scales(int64_t row, int64_t first, int64_t count, GroupScale* out) const override;
  void read_codes_and_scales(int64_t row, int64_t col, int64_t count, uint8_t* codes,
                             GroupScale* scales) const override;

 private:
  // What elements have in common: s, and z of kInt4.
  struct Step {
    float scale = 0;
    float zero = 0;
  };

  template <typename Use>
  void for_each_group(int64_t row, int64_t col, int64_t count, Use use) const;
  void read_numbers(int64_t row, int64_t col, int64_t count, float* out) const;
  Step step_of(int64_t row, const float* numbers) const;
  Step best_step(const float* numbers) const;
  float scale_of_row(int64_t row) const;
  void round(const float* numbers, const Step& step, int64_t first, int64_t last,
             uint8_t* out) const;
  float to_scale(float number) const;  // the nearest that a scale can be

  const std::string place_;
  const Numbers numbers_;
  const RoundedFormat format_;
  CodeFormat layout_;
  // Of kFp8, [rows]: what was found in all of a row; kUnknown = not yet.
  static constexpr float kUnknown = -1;
  mutable std::vector<std::atomic<float>> row_scales_;
};

}  // namespace nanovllm
