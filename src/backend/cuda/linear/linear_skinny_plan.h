// How a product is divided among the blocks of linear_skinny.cu.
#pragma once

#include <cstdint>

#include "backend/cuda/linear/linear_skinny.h"

namespace nanovllm::cuda::skinny {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kUnit = 64;                   // elements of K that a warp takes in turn
constexpr int kBlockUnit = kWarps * kUnit;  // and all warps of a block
constexpr int kPad = 32;                    // elements: two neighbouring rows of x share no bank

// Weights in flight: slots for so many units.
constexpr int stages_of(int tiles) { return tiles == 1 ? 6 : tiles == 2 ? 4 : tiles == 4 ? 3 : 2; }
constexpr int row_sets_of(int rows) { return rows <= 8 ? 1 : rows <= 16 ? 2 : 4; }  // of 8 rows

struct Plan {
  int tiles = 0;  // of 8 features a block; 0 = not for this kernel
  int rows_at_once = 0;
  int cluster = 1;     // blocks that share K
  int units = 0;       // a warp's, for one group of features
  int x_units = 0;     // whose columns of x are in shared memory at once
  int groups = 0;      // of 8 tiles features
  int stages = 0;      // slots for so many units are there
  int sum_floats = 0;  // of shared memory for partial sums
  int blocks = 0;
  int64_t shared_bytes = 0;
  int64_t cost = 0;
};

Plan plan_of(const SkinnyProduct& product, const cudaDeviceProp& device);

}  // namespace nanovllm::cuda::skinny
