// Products of some rows with weights in codes, on Hopper; see code_wgmma.cuh.
#pragma once

#include "backend/cuda/linear/code_product.h"
#include "backend/cuda/linear/code_product_shape.h"

namespace nanovllm::cuda {

constexpr int kMaxCodeWgmmaRows = 64;
constexpr int kBestStreamRows = 16;  // with so many, code_stream.cuh's kernel is as fast or faster
constexpr int kGroupTiles = 4;       // of 16 features, a warpgroup's
constexpr int kMaxGroups = 4;        // of a block
constexpr int kMaxGroupSlots = 4, kMaxRowStages = 8;
constexpr int kSumPadding = 4;  // floats behind a row's sums: rows share few banks

struct CodeWgmmaPlan {
  int rows = 0;          // that a block computes: 8 to 64; 0 = not for this kernel
  int groups = 0;        // warpgroups of a block
  int k_groups = 1;      // of them, that share K
  int panels = 0;        // of groups / k_groups * 64 features
  int split = 1;         // blocks of a cluster, which share K
  int range_blocks = 0;  // blocks of 256 columns of one of them
  int slots = 0;         // blocks of codes that a warp has in shared memory
  int row_stages = 0;    // blocks of 256 columns whose rows are in shared memory, a power of two,
  int row_shift = 0;     // whose logarithm this is
  int row_bytes = 0;     // of one
  int tail_bytes = 0;    // of a tile's last block
  // Where things are in shared memory, bytes, from a multiple of 1024 on.
  int rows_offset = 0, table_offset = 0, ring_offset = 0;
  int shared_bytes = 0;  // with what it takes to begin at such a multiple

  constexpr int features() const { return groups / k_groups * kGroupTiles * kTileRows; }
};

CodeWgmmaPlan plan_code_wgmma(const CodeProduct& product, const DeviceTraits& device);
// `product`: not of experts; its x aligned to 16 bytes.
void launch_code_wgmma(cudaStream_t stream, const CodeProduct& product, const CodeWgmmaPlan& plan);

}  // namespace nanovllm::cuda
