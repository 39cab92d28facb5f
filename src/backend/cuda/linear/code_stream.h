// Products of few rows with weights in codes, on Hopper and later; see code_stream.cuh.
#pragma once

#include "backend/cuda/linear/code_product.h"
#include "backend/cuda/linear/code_product_shape.h"

namespace nanovllm::cuda {

constexpr int kMaxStreamWarps = 16;
constexpr int kMaxStreamSlots = 4;
constexpr int kMaxStreamRows = 32;

struct StreamPlan {
  int row_sets = 0;      // of 8 rows; 0 = not for this kernel
  int warps = 0;         // of a block
  int items = 0;         // tiles of features
  int k_warps = 1;       // that share an item's K
  int rounds = 0;        // of items of a block
  int blocks = 0;        // of the grid, for each tile of rows
  int row_tiles = 1;     // of experts
  int split = 1;         // blocks of a cluster, which share K: 1 or 2
  int range_blocks = 0;  // blocks of 256 columns of one of them
  int slices = 0;        // of these, whose columns of x are in shared memory at once
  int slice_blocks = 0;  // blocks of 256 columns of one
  int share_blocks = 0;  // of them a warp's
  int slots = 0;         // blocks of codes that a warp has in shared memory
  int x_stride = 0;      // bytes from one row of a slice to the next
  int x_bytes = 0;       // of a slice
  int tail_bytes = 0;    // of a tile's last block
  // Where things are in shared memory, bytes.
  int table_offset = 0, ring_offset = 0, x_offset = 0, sums_offset = 0;
  int shared_bytes = 0;

  constexpr int split_shift() const { return split - 1; }  // of 1 or 2
};

// Whether the kernel has few enough registers for three blocks of 8 warps a multiprocessor.
constexpr bool is_small_stream(CodeKind kind, int row_sets, int steps) {
  return row_sets == 1 && (steps == 4 || kind == CodeKind::k6);
}
constexpr int kSmallRegisters = 80;
StreamPlan plan_code_stream(const CodeProduct& product, const DeviceTraits& device);
void launch_code_stream(cudaStream_t stream, const CodeProduct& product, const StreamPlan& plan);

}  // namespace nanovllm::cuda
