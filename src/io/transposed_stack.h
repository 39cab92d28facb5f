// Matrices that a file holds with rows and columns exchanged.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/matrix_decoder.h"

namespace nanovllm {

// A stack of [rows, cols] matrices, each of which lies as [cols, rows] in memory. Rows are counted
// through the whole stack.
class TransposedStack final : public MatrixDecoder {
 public:
  // data: numbers at any address; it outlives the stack.
  TransposedStack(const void* data, DType dtype, int64_t rows, int64_t cols)
      : data_(static_cast<const char*>(data)), dtype_(dtype), rows_(rows), cols_(cols) {}
  // Rows that are read one after another find their neighbours' cache lines: a matrix is read once.
  void decode(int64_t row, int64_t col, int64_t count, float* out) const override;

 private:
  const char* const data_;
  const DType dtype_;
  const int64_t rows_;
  const int64_t cols_;
};

}  // namespace nanovllm
