// A matrix of a checkpoint in host memory, in whatever format its file has.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/matrix_decoder.h"
#include "base/matrix_source.h"

namespace nanovllm {

// A part of a matrix, usually of a mapped file: plain numbers, or codes that a decoder can read.
struct HostMatrix {
  // The whole matrix, if it has plain numbers; else null.
  const void* data = nullptr;
  // Of plain numbers: float32, bfloat16 or float16.
  DType dtype = DType::kBFloat16;
  // Of the part.
  int64_t rows = 0;
  int64_t cols = 0;
  // Elements from one row of `data` to the next.
  int64_t row_stride = 0;
  // Where the part begins in the whole matrix.
  int64_t first_row = 0;
  int64_t first_col = 0;
  // For q and k of checkpoints whose rotary embedding pairs neighbours. interleaved_head = rows per
  // head. In each head the file has the first interleaved_rows rows in the order 0, half, 1, half +
  // 1, ...; file_row() gives them back in the order 0, 1, 2, ..., so that halves are paired. 0 =
  // the rows are in order.
  int64_t interleaved_head = 0;
  int64_t interleaved_rows = 0;
  // Of the whole matrix; null = plain numbers.
  const MatrixDecoder* decoder = nullptr;
  // The decoder's code_format(), if products are to compute with the codes; null = they are decoded
  // while they are packed.
  const CodeFormat* codes = nullptr;
  // Null = memory that is not a mapped file, which another program could cut short.
  const MatrixSource* source = nullptr;

  // Which row of the file is row r of the part.
  int64_t file_row(int64_t r) const {
    const int64_t row = first_row + r;
    if (interleaved_head == 0) return row;
    const int64_t in_head = row % interleaved_head, half = interleaved_rows / 2;
    if (in_head >= interleaved_rows) return row;
    return row - in_head + 2 * (in_head % half) + in_head / half;
  }
  // Row r of the part, of plain numbers.
  const char* row_data(int64_t r) const {
    return static_cast<const char*>(data) +
           (file_row(r) * row_stride + first_col) * static_cast<int64_t>(size_of(dtype));
  }
  // Whether the part is one piece of memory without gaps, of plain numbers in order.
  bool is_contiguous() const {
    return decoder == nullptr && interleaved_head == 0 && row_stride == cols;
  }
  bool operator==(const HostMatrix&) const = default;
};

// Row n of matrices that are stacked: whose it is, and which of its rows; null behind the last.
struct StackedRow {
  const HostMatrix* matrix = nullptr;
  int64_t row = 0;
};
StackedRow find_row(std::span<const HostMatrix> matrices, int64_t n);

// Whether both are the same columns in codes of one format, so that a layout can stack them.
bool have_equal_codes(const HostMatrix& a, const HostMatrix& b);
int64_t num_with_codes(std::span<const HostMatrix> matrices);

// out[0, count) = elements [col, col + count) of row r, converted to `dtype`, float32 or bfloat16
// (rounded to nearest even).
void read_elements(const HostMatrix& matrix, int64_t r, int64_t col, int64_t count, DType dtype,
                   void* out);

}  // namespace nanovllm
