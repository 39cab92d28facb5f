// How a product is divided among the blocks of linear_wgmma.cu.
#pragma once

#include <cstddef>

#include "backend/cuda/linear/linear_wgmma.h"

namespace nanovllm::cuda {

constexpr int kGroups = 2;         // warpgroups of a block, which take units in turn
constexpr int kTileFeatures = 64;  // that the tensor cores multiply at once
constexpr int kChunk = 64;         // elements of K in a line of shared memory, 128 bytes
constexpr int kMaxCopies = 24;     // of a weight, and stages of x
constexpr int kMaxKBlocks = 8;
constexpr int kStagedStride = kTileFeatures + 4;  // floats: rows share no banks

struct WgmmaPlan {
  int features = 0;  // of a block; 0 = not for this kernel
  int rows = 0;      // the product's and padding
  int tiles = 0;     // of `features`
  int k_blocks = 1;  // of a cluster, which share K and, in the end, the rows
  int unit = 0;      // chunks of x that are copied, and multiplied, at once
  int units = 0;     // of a block
  int x_stages = 0;  // units of x in shared memory; each stage is one group's, or used once
  int w_shift = 0;   // log2 of the units whose share of the weight is one copy
  int w_copies = 0;  // of a block's share of the weight, all of which stays in shared memory
  int w_bytes = 0;   // of a copy
  int x_bytes = 0;
  // Where things are in shared memory, bytes.
  int x_offset = 0;
  int received_offset = 0;
  int scale_offset = 0;
  size_t shared_bytes = 0;
};

WgmmaPlan plan_wgmma(const WgmmaProduct& product, int multiprocessors);

}  // namespace nanovllm::cuda
