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

}  // namespace nanovllm::cuda
