// Conversion and transposition of rows into what the kernels of linear_kernels.h read.
#pragma once

#include <cstdint>
#include <span>

#include "backend/cpu/cpu_features.h"
#include "backend/cpu/linear/linear_kernels.h"
#include "base/dtype.h"
#include "ops/host_matrix.h"

namespace nanovllm {

constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
constexpr int64_t divide_up(int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; }

const LinearKernels& linear_kernels(Isa isa);

// A row of some matrix; one without either counts as zeros.
struct SourceRow {
  const char* data = nullptr;
  DType dtype = DType::kFloat32;
  const HostMatrix* coded = nullptr;  // whose row `row` it is, where that is not plain
  int64_t row = 0;
};

inline constexpr int kMaxPackedRows = 32;  // at once

// Packs `rows` of `columns` elements, converted to `dtype` and padded with zeros to num_words words
// of 4 bytes: out[w * rows.size() + r] = word w of row r. For past_caches see LinearKernels.
void pack_rows(const LinearKernels& kernels, std::span<const SourceRow> rows, int64_t columns,
               DType dtype, int64_t num_words, void* out, bool past_caches = false);

// out[g * stride] = the sum of a row's elements in group g, of float32 rounded to bfloat16 if so
// wanted.
void sum_groups(const void* row, DType dtype, bool to_bf16, int64_t columns, int64_t group_columns,
                float* out, int64_t stride);

}  // namespace nanovllm
