// A matrix of a checkpoint in host memory, in whatever format its file has.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/matrix_decoder.h"
#include "base/matrix_source.h"

namespace nanovllm {

// A part of a matrix of a file, as a rule a mapped one: plain numbers, or codes that a decoder
// knows how to read.
struct HostMatrix {
  const void* data = nullptr;      // of the whole matrix, where its numbers are plain
  DType dtype = DType::kBFloat16;  // float32, bfloat16 or float16; of plain numbers
  int64_t rows = 0;                // of the part
  int64_t cols = 0;
  int64_t row_stride = 0;  // elements from one row of `data` to the next
  int64_t first_row = 0;   // of the part in the whole
  int64_t first_col = 0;
  // Rows of heads of so many, the first interleaved_rows of which the file has for a rotation of
  // neighbours (0, half, 1, half + 1, ...) and that are wanted for one of halves (0, 1, ...); 0: in
  // the order of the file.
  int64_t interleaved_head = 0;
  int64_t interleaved_rows = 0;
  const MatrixDecoder* decoder = nullptr;  // of the whole matrix; null: plain numbers
  const MatrixSource* source = nullptr;    // null: memory that nobody cuts short

  // Where the file has row r of the part.
  int64_t file_row(int64_t r) const {
    const int64_t row = first_row + r;
    if (interleaved_head == 0) return row;
    const int64_t in_head = row % interleaved_head, half = interleaved_rows / 2;
    if (in_head >= interleaved_rows) return row;
    return row - in_head + 2 * (in_head % half) + in_head / half;
  }
  // Row r of the part, plain.
  const char* row_data(int64_t r) const {
    return static_cast<const char*>(data) +
           (file_row(r) * row_stride + first_col) * static_cast<int64_t>(size_of(dtype));
  }
  // Whether the part's numbers stand in memory one behind the other.
  bool is_contiguous() const {
    return decoder == nullptr && interleaved_head == 0 && row_stride == cols;
  }
  bool operator==(const HostMatrix&) const = default;
};

// out[0, count) = elements [col, col + count) of row r, converted to `dtype`, float32 or bfloat16
// (rounded to nearest even).
void read_elements(const HostMatrix& matrix, int64_t r, int64_t col, int64_t count, DType dtype,
                   void* out);

}  // namespace nanovllm
