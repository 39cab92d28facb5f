// Matrices of codes with scales and zero points, as packages for Hugging Face folders store them:
//   element = (value of its code - zero point of its block) * scale of its block, in float32
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/matrix_decoder.h"

namespace nanovllm {

// What codes stand for; those of 4 bits use the first 16 values.
using CodeValues = std::array<float, 256>;
// FP8 is E4M3 without infinities. FP4 is E2M1; code 8 is minus zero for compressed-tensors and zero
// for ModelOpt.
// E8M0 is a power of two, of the code less 127.
extern const CodeValues kUnsignedCodes, kSignedCodes, kFp8Codes, kFp4Codes, kModelOptFp4Codes;
extern const CodeValues kE8m0Codes;
// Integers less 8.
extern const CodeValues kInt4Codes;

// Numbers in rows and columns: plain ones, bytes of a code each, or words of 32 bits that hold
// several codes along the rows or along the columns, the lowest bits first.
struct NumberGrid {
  enum class Type { kFloat32, kBFloat16, kFloat16, kBytes, kWordsOf4Bits, kWordsOf8Bits };
  const std::byte* data = nullptr;  // at any address
  Type type = Type::kFloat32;
  int64_t row_stride = 0;  // numbers or words from one to the next
  int64_t col_stride = 1;
  int64_t shared_rows = 1;                     // rows that have a number or a word together
  const CodeValues* values = &kUnsignedCodes;  // of codes
  bool words_hold_rows = false;                // instead of columns
  bool is_awq_order = false;                   // of the rows in a word
  uint32_t addend = 0;                         // to each word

  bool has_codes() const { return type >= Type::kBytes; }
  // out[0, count) = the numbers [col, col + count) of a row.
  void read(int64_t row, int64_t col, int64_t count, float* out) const;
  // The codes that stand for them.
  void read_codes(int64_t row, int64_t col, int64_t count, uint8_t* out) const;
};

struct CodedMatrix final : MatrixDecoder {
  std::string place;  // for messages: FILE: tensor NAME
  int64_t rows = 0;
  int64_t cols = 0;
  NumberGrid codes;
  // Of blocks of columns; shared_rows is the rows of a block.
  int64_t block_cols = 1;
  std::vector<int32_t> block_of_col;  // where blocks are no neighbours
  NumberGrid scales;
  float global_scale = 1;
  bool divides_by_global_scale = false;  // instead of multiplying
  NumberGrid zeros;                      // without data: one for all
  float zero = 0;

  // What choose_layout() found: what the codes stand for, or why there is no layout for them.
  std::optional<CodeFormat> layout;
  std::string no_layout_because;
  bool flips_top_bit = false;  // unsigned bytes are signed ones in the layout, 128 less

  int64_t num_blocks() const { return (cols + block_cols - 1) / block_cols; }
  // Once all the rest is there. Reads scales of float32 and zero points.
  void choose_layout();

  // decode() and read_codes() throw Error(kCorruptData) where a code stands for NaN: layouts have
  // no code for that.
  void decode(int64_t row, int64_t col, int64_t count, float* out) const override;
  const CodeFormat* code_format() const override { return layout ? &*layout : nullptr; }
  void read_codes(int64_t row, int64_t col, int64_t count, uint8_t* out) const override;
  void read_scales(int64_t row, int64_t first, int64_t count, GroupScale* out) const override;

 private:
  struct Block {
    float stored_scale = 0;
    float scale = 0;  // with the global one
    float zero = 0;
  };
  Block read_block(int64_t row, int64_t block) const;
  [[noreturn]] void refuse_nan(int64_t row, int64_t col) const;
};

}  // namespace nanovllm
