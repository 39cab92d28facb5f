// How a product is divided among the blocks of linear_wgmma.cu.
#pragma once

#include <cstddef>

#include "backend/cuda/linear_wgmma.h"

namespace nanovllm::cuda {

constexpr int kGroups = 2;         // warpgroups of a block, which take units in turn
constexpr int kTileFeatures = 64;  // that the tensor cores multiply at once
constexpr int kChunk = 64;         // elements of K in a line of shared memory, 128 bytes
constexpr int kMaxStages = 24;
constexpr int kMaxKBlocks = 8;
constexpr int kStagedStride = kTileFeatures + 4;  // floats: rows share no banks

struct WgmmaPlan {
  int features = 0;  // of a block; 0 = not for this kernel
  int rows = 0;      // the product's and padding
  int tiles = 0;     // of `features`
  int k_blocks = 1;  // of a cluster, which share K and, in the end, the rows
  int unit = 0;      // chunks that are copied at once
  int units = 0;     // of a block
  int w_stages = 0;  // units in shared memory, of the weight
  int x_stages = 0;  // and of x; each belongs to one group, or is used once
  int w_bytes = 0;   // of a unit
  int x_bytes = 0;
  // Where things are in shared memory, bytes.
  int x_offset = 0;
  int received_offset = 0;
  int scale_offset = 0;
  size_t shared_bytes = 0;
};

WgmmaPlan plan_wgmma(const WgmmaProduct& product, int multiprocessors);

}  // namespace nanovllm::cuda
