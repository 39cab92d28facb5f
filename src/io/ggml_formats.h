// The number formats of GGUF files (ggml's tensor types): plain numbers, and blocks of codes that
// share scales. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, ggml-common.h
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/matrix_decoder.h"

namespace nanovllm {

// Writes a block's elements in float32, the operations in the order of gguf-py's dequantize_blocks
// (gguf 0.19.0, quants.py), so that every bit is the same. Returns something that is finite if and
// only if all scales that the block holds are and all its elements.
using DecodeBlock = float (*)(const uint8_t* block, float* out);

struct GgmlFormat {
  uint32_t id = 0;
  const char* name = "";       // e.g. "Q4_K"
  int64_t block_elements = 0;  // 1 for plain numbers; a row is a whole number of blocks
  int64_t block_bytes = 0;
  std::optional<DType> plain;  // of F32, F16 and BF16, which need no decoding
  DecodeBlock decode = nullptr;
};

// The same block as codes and scales; base/code_format.h tells what they stand for.
struct GgmlCodes {
  uint32_t id = 0;
  CodeFormat format;
  // [block_elements], a byte each
  void (*unpack)(const uint8_t* block, uint8_t* codes) = nullptr;
  // [block_elements / group_columns]; returns as DecodeBlock does.
  float (*read_scales)(const uint8_t* block, GroupScale* scales) = nullptr;
};

// F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL, IQ4_XS and MXFP4; null for
// any other id.
const GgmlFormat* find_ggml_format(uint32_t id);
// Of those that are not plain.
const GgmlCodes* find_ggml_codes(uint32_t id);

// Bits of these codes where they are more than the file has, as for Q2_K and Q3_K; 0 = they are
// not, or no format has this name.
int wider_code_bits(std::string_view name);

// The name of any type that ggml or ik_llama.cpp knows or knew, also of those that can't be read;
// of any other the number.
std::string ggml_type_name(uint32_t id);

// Decodes `data`, [rows, cols] of a format that is not plain, in rows without gaps. `place`, for
// messages: FILE: tensor NAME. `format` is find_ggml_format's.
std::unique_ptr<MatrixDecoder> make_ggml_decoder(const GgmlFormat& format, const void* data,
                                                 int64_t rows, int64_t cols, std::string place);

}  // namespace nanovllm
