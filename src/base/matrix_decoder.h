// How the rows of a matrix become numbers where a file does not hold them as numbers.
#pragma once

#include <cstdint>

#include "base/code_format.h"

namespace nanovllm {

// A [rows, cols] matrix in a quantised format. Thread-safe; what it reads outlives it.
class MatrixDecoder {
 public:
  virtual ~MatrixDecoder() = default;
  // out[0, count) = the elements [col, col + count) of a row, in float32 exactly as the format
  // defines them; they may begin and end inside a block. Throws Error(kCorruptData) naming tensor
  // and block where a scale is NaN or infinite, or row and column where a code is NaN.
  virtual void decode(int64_t row, int64_t col, int64_t count, float* out) const = 0;

  // What the codes stand for; null = there is no layout for this format, decode() it is.
  virtual const CodeFormat* code_format() const { return nullptr; }
  // out[0, count) = the codes [col, col + count) of a row, of code_format()'s code_bits. Throws
  // where a code is NaN.
  virtual void read_codes(int64_t /*row*/, int64_t /*col*/, int64_t /*count*/,
                          uint8_t* /*out*/) const {}
  // out[0, count) = groups [first, first + count) of a row. Throws as decode().
  virtual void read_scales(int64_t /*row*/, int64_t /*first*/, int64_t /*count*/,
                           GroupScale* /*out*/) const {}
  // Both, codes [col, col + count) and the groups that these columns are of: what a format finds
  // together takes half as long as one after the other.
  virtual void read_codes_and_scales(int64_t row, int64_t col, int64_t count, uint8_t* codes,
                                     GroupScale* scales) const {
    const int64_t columns = code_format()->group_columns, first = col / columns;
    read_codes(row, col, count, codes);
    read_scales(row, first, (col + count - 1) / columns + 1 - first, scales);
  }
};

}  // namespace nanovllm
