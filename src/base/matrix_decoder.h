// How the rows of a matrix become numbers where a file does not hold them as numbers.
#pragma once

#include <cstdint>

namespace nanovllm {

// A [rows, cols] matrix in a quantised format. Thread-safe; what it reads outlives it.
class MatrixDecoder {
 public:
  virtual ~MatrixDecoder() = default;
  // out[0, count) = the elements [col, col + count) of a row, in float32 exactly as the format
  // defines them; they may begin and end inside a block. Throws Error(kCorruptData) naming tensor
  // and block where a scale is NaN or infinite.
  virtual void decode(int64_t row, int64_t col, int64_t count, float* out) const = 0;
};

}  // namespace nanovllm
