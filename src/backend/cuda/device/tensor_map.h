// Descriptions of matrices for Hopper's copy engine.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace nanovllm::cuda {

// What one copy brings to shared memory, [chunks][parts][rows] lines of 64 columns with the
// 128-byte swizzle: the same rows of each part of the matrix.
struct BoxShape {
  int rows;    // of a part
  int chunks;  // of 64 columns
};

// Of a row-major bfloat16 matrix whose rows are `parts` equal parts. What lies outside of a part
// reads as zero. `matrix` is aligned to 16 bytes, cols a multiple of 64.
CUtensorMap make_tensor_map(const void* matrix, int rows, int cols, int parts, BoxShape box);

// Of a row-major bfloat16 matrix, likewise: a copy brings lines of the same 64 columns of
// `box_rows` rows, as they lie in memory. Rows are counted in int32.
CUtensorMap make_line_map(const void* matrix, int64_t rows, int cols, int box_rows);

// Of the matrices of experts one behind the other, [experts][rows, cols], whose rows are `parts`
// equal parts of a multiple of 8 rows. A copy brings 64 columns of 8 rows of each part, then of the
// next 8 rows, up to box_rows of each part, with the 128-byte swizzle; what lies outside of a part
// reads as zero. cols is a multiple of 8.
CUtensorMap make_expert_map(const void* weights, int experts, int parts, int rows, int cols,
                            int box_rows);

// Of a row-major bfloat16 matrix whose cols are a multiple of 8: a copy brings 64 columns of
// box_rows rows with the 128-byte swizzle.
CUtensorMap make_row_map(const void* matrix, int64_t rows, int cols, int box_rows);

}  // namespace nanovllm::cuda
