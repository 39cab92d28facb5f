// Columns of a matrix that do not lie together, as one matrix.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/matrix_decoder.h"
#include "ops/host_matrix.h"

namespace nanovllm {

// Of each row of a matrix the columns [first, first + width), [first + stride, first + stride +
// width) and so on, one behind the other. What the matrix refers to outlives this.
class ColumnRuns final : public MatrixDecoder {
 public:
  // matrix: all of it, rows by their place in the file.
  ColumnRuns(const HostMatrix& matrix, int64_t first, int64_t width, int64_t stride);

  void decode(int64_t row, int64_t col, int64_t count, float* out) const override;
  // The matrix's own, where every run is whole groups of columns.
  const CodeFormat* code_format() const override { return format_; }
  void read_codes(int64_t row, int64_t col, int64_t count, uint8_t* out) const override;
  void read_scales(int64_t row, int64_t first, int64_t count, GroupScale* out) const override;

 private:
  // Calls read(column of the matrix, offset, count) for what [col, col + count) is made of, all
  // counted in units of so many columns.
  template <typename Read>
  void for_each_run(int64_t col, int64_t count, int64_t unit, const Read& read) const {
    const int64_t width = width_ / unit;
    for (int64_t done = 0; done < count;) {
      const int64_t in_run = (col + done) % width;
      const int64_t n = std::min(count - done, width - in_run);
      read((first_ + (col + done) / width * stride_) / unit + in_run, done, n);
      done += n;
    }
  }

  const HostMatrix matrix_;
  const int64_t first_, width_, stride_;
  const CodeFormat* format_ = nullptr;
};

}  // namespace nanovllm
