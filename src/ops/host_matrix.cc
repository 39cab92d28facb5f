#include "ops/host_matrix.h"

#include <algorithm>
#include <cstring>

namespace nanovllm {
namespace {

void read_floats(const HostMatrix& matrix, int64_t r, int64_t col, int64_t count, float* out) {
  if (matrix.decoder != nullptr) {
    matrix.decoder->decode(matrix.file_row(r), matrix.first_col + col, count, out);
    return;
  }
  const char* row = matrix.row_data(r) + col * static_cast<int64_t>(size_of(matrix.dtype));
  if (matrix.dtype == DType::kFloat32) {
    std::memcpy(out, row, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  const auto* bits = reinterpret_cast<const uint16_t*>(row);
  for (int64_t i = 0; i < count; ++i) {
    out[i] =
        matrix.dtype == DType::kBFloat16 ? to_float(BFloat16{bits[i]}) : half_to_float(bits[i]);
  }
}

}  // namespace

StackedRow find_row(std::span<const HostMatrix> matrices, int64_t n) {
  for (const HostMatrix& matrix : matrices) {
    if (n < matrix.rows) return {&matrix, n};
    n -= matrix.rows;
  }
  return {};
}

bool have_equal_codes(const HostMatrix& a, const HostMatrix& b) {
  return a.codes != nullptr && b.codes != nullptr && *a.codes == *b.codes &&
         a.first_col == b.first_col && a.cols == b.cols;
}

int64_t num_with_codes(std::span<const HostMatrix> matrices) {
  return std::ranges::count_if(matrices, [](const HostMatrix& m) { return m.codes != nullptr; });
}

void read_elements(const HostMatrix& matrix, int64_t r, int64_t col, int64_t count, DType dtype,
                   void* out) {
  if (matrix.decoder == nullptr && matrix.dtype == dtype) {
    const auto bytes = static_cast<int64_t>(size_of(dtype));
    std::memcpy(out, matrix.row_data(r) + col * bytes, static_cast<size_t>(count * bytes));
    return;
  }
  if (dtype == DType::kFloat32) return read_floats(matrix, r, col, count, static_cast<float*>(out));
  // Pieces that stay in the cache, and that no block of a format is longer than.
  constexpr int64_t kChunk = 256;
  float floats[kChunk];
  auto* rounded = static_cast<BFloat16*>(out);
  while (count > 0) {
    const int64_t n = std::min(count, kChunk - (matrix.first_col + col) % kChunk);
    read_floats(matrix, r, col, n, floats);
    std::transform(floats, floats + n, rounded, to_bfloat16);
    rounded += n;
    col += n;
    count -= n;
  }
}

}  // namespace nanovllm
