// Matrices of codes with scales and zero points, as packages for Hugging Face folders store them:
//   element = (value of its code - zero point of its block) * scale of its block, in float32
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/matrix_decoder.h"

namespace nanovllm {

// What codes stand for; those of 4 bits use the first 16 values.
using CodeValues = std::array<float, 256>;
// FP8 is E4M3 without infinities. FP4 is E2M1; code 8 is minus zero for compressed-tensors and zero
// for ModelOpt.
extern const CodeValues kUnsignedCodes, kSignedCodes, kFp8Codes, kFp4Codes, kModelOptFp4Codes;

// One number for each block.
struct BlockNumbers {
  enum class Type { kFloat32, kBFloat16, kFloat16, kFp8, kInt8 };
  const std::byte* data = nullptr;  // at any address
  Type type = Type::kFloat32;
  int64_t row_stride = 0;  // numbers from one row of blocks to the next
  int64_t col_stride = 1;
  int64_t block_rows = 1;

  float at(int64_t row, int64_t block) const;
};

// Codes in words of 32 bits, the lowest bits first; a word holds several along the rows or along
// the columns.
struct PackedWords {
  const std::byte* data = nullptr;  // at any address
  int64_t row_stride = 1;           // words from one to the next
  int64_t col_stride = 1;
  int row_shift = 0;  // a word holds 2^row_shift rows, or
  int col_shift = 0;  // 2^col_shift columns
  int num_bits = 4;
  uint32_t addend = 0;        // to each word
  bool is_awq_order = false;  // of the rows in a word

  uint32_t at(int64_t row, int64_t col) const;
};

struct CodedMatrix final : MatrixDecoder {
  std::string name;  // for messages
  int64_t rows = 0;
  int64_t cols = 0;
  // The codes: one row behind the other, two codes of 4 bits in a byte, the low one first; or
  // words.
  const std::byte* codes = nullptr;
  int64_t row_bytes = 0;
  int num_bits = 8;
  PackedWords words;
  const CodeValues* values = &kUnsignedCodes;

  int64_t block_cols = 1;
  const std::byte* block_of_col = nullptr;  // int32 [cols] where blocks are no neighbours
  BlockNumbers scales;
  float global_scale = 1;
  bool divides_by_global_scale = false;  // instead of multiplying
  // Zero points: numbers, words, or one for all.
  BlockNumbers zeros;
  PackedWords zero_words;
  float zero = 0;

  void decode(int64_t row, int64_t col, int64_t count, float* out) const override;
};

}  // namespace nanovllm
