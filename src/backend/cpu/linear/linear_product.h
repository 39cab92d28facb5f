// Products with weights as linear.cc plans them: several at once, so that small ones keep all
// threads busy.
#pragma once

#include <cstdint>

#include "backend/cpu/linear/linear_weight.h"
#include "ops/tensor.h"

namespace nanovllm {

// Rows of a product, at most. Bounds the memory for packed rows, and costs one more pass over the
// weights, which takes far less time than the products of so many rows.
inline constexpr int64_t kMaxRowsAtOnce = 1024;

// out = x W^T + b of 1 .. kMaxRowsAtOnce rows.
struct LinearProduct {
  const CpuLinearWeight* weight = nullptr;
  Tensor out;                        // [R,N] act or float32
  Tensor x;                          // [any,K] act
  const int32_t* row_ids = nullptr;  // [R], the rows of x; null = the first ones
};

// Where the rows of a product lie in memory for the kernel.
struct PackedRows {
  RowFormat format = {};
  int64_t row_bytes = 0;
  RowTiling tiling = {};
  int64_t num_tiles = 0;
  const char* data = nullptr;
  char* memory = nullptr;  // where they are to be packed
  float* sums = nullptr;   // where those over groups are to be; see LinearBlock::sums
};

// How a product is cut into tasks: panels first, so that the weights are read once, and rows too
// where that leaves threads without work.
struct Division {
  int64_t panels_per_task = 0;
  int64_t panel_tasks = 0;
  int64_t tiles_per_task = 0;
  int64_t row_tasks = 0;
};

// With one part of the weight.
struct PlannedProduct {
  LinearProduct product;
  const LinearPart* part = nullptr;
  const LinearPath* path = nullptr;
  PackedRows packed = {};
  Division division = {};
  int64_t first_task = 0;  // among those of all products
  int64_t first_tile = 0;  // of rows to be packed or added up
  bool packs_rows = false;
};

}  // namespace nanovllm
