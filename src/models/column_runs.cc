#include "models/column_runs.h"

namespace nanovllm {

ColumnRuns::ColumnRuns(const HostMatrix& matrix, int64_t first, int64_t width, int64_t stride)
    : matrix_(matrix), first_(first), width_(width), stride_(stride) {
  if (matrix.decoder == nullptr) return;
  const CodeFormat* format = matrix.decoder->code_format();
  if (format == nullptr) return;
  const int64_t columns = std::max(format->group_columns, format->super_columns);
  const auto is_whole = [&](int64_t n) { return n % columns == 0; };
  if (is_whole(first) && is_whole(width) && is_whole(stride)) format_ = format;
}

void ColumnRuns::decode(int64_t row, int64_t col, int64_t count, float* out) const {
  for_each_run(col, count, 1, [&](int64_t from, int64_t offset, int64_t n) {
    read_elements(matrix_, row, from, n, DType::kFloat32, out + offset);
  });
}

void ColumnRuns::read_codes(int64_t row, int64_t col, int64_t count, uint8_t* out) const {
  for_each_run(col, count, 1, [&](int64_t from, int64_t offset, int64_t n) {
    matrix_.decoder->read_codes(row, from, n, out + offset);
  });
}

void ColumnRuns::read_scales(int64_t row, int64_t first, int64_t count, GroupScale* out) const {
  for_each_run(first, count, format_->group_columns, [&](int64_t from, int64_t offset, int64_t n) {
    matrix_.decoder->read_scales(row, from, n, out + offset);
  });
}

}  // namespace nanovllm
