// How products with codes are divided among blocks, for every format and GPU; needs no device.
#include <gtest/gtest.h>

#include <string>

#include "backend/cpu/linear/random_codes_testing.h"
#include "backend/cuda/device/device_traits_testing.h"
#include "backend/cuda/experts/experts.h"
#include "backend/cuda/linear/code_product.h"
#include "backend/cuda/linear/code_stream.h"
#include "backend/cuda/linear/code_wgmma.h"

namespace nanovllm::cuda {
namespace {

CodeProduct product_of(const CodeFormat& format, int features, int cols) {
  const HostMatrix matrix = {.rows = features, .cols = cols, .row_stride = cols, .codes = &format};
  CodeProduct product;
  product.shape = plan_code_parts({&matrix, 1}, DType::kBFloat16)[0].shape;
  product.features = features;
  return product;
}

// Of every format, on every GPU, for any number of rows: a product is divided, and the order of a
// row's sums does not depend on the number.
TEST(CudaCodePlan, EveryGpuTakesEveryFormatAndRows) {
  for (const auto& [name, format] : kFormats) {
    for (const int features : {1, 16, 4096, 151936}) {
      CodeProduct product = product_of(format, features, 1024);
      for (const Gpu& gpu : kGpus) {
        product.rows = 1;
        const CodePlan one = plan_code_product(product, gpu.traits);
        for (const int rows : {1, 8, 9, 33, 64, 65, 8192}) {
          SCOPED_TRACE(std::string(name) + ", " + gpu.name + ", " + std::to_string(rows));
          product.rows = rows;
          const CodePlan plan = plan_code_product(product, gpu.traits);
          ASSERT_GT(plan.row_sets, 0);
          EXPECT_GE(plan.row_tiles * plan.row_sets * 8, rows);
          EXPECT_GE(plan.panels * 128, features);
          EXPECT_EQ(plan.split, one.split);
          EXPECT_GE(plan.split * plan.steps, product.shape.num_blocks);
          EXPECT_GE(plan.stages, 2);
          EXPECT_LE(plan.shared_bytes, static_cast<int64_t>(gpu.traits.block_bytes()));
          if (gpu.traits.properties.major < 9) {
            EXPECT_EQ(plan.split, 1);
          }
        }
      }
    }
  }
}

// Every feature and block of columns is some warp's, and a block's memory is enough.
void expect_divided(const StreamPlan& plan, const CodeProduct& product, const Gpu& gpu) {
  ASSERT_GT(plan.row_sets, 0);
  EXPECT_GE(plan.row_sets * 8, product.rows);
  EXPECT_GE(plan.items * kTileRows, product.features);
  const int parallel = plan.warps / plan.k_warps;
  EXPECT_EQ(plan.warps % plan.k_warps, 0);
  EXPECT_GE(plan.rounds * plan.blocks / plan.split * parallel, plan.items);
  EXPECT_GE(plan.k_warps * plan.share_blocks, plan.slice_blocks);
  EXPECT_GE(plan.slices * plan.slice_blocks, plan.range_blocks);
  EXPECT_GE(plan.split * plan.range_blocks, product.shape.num_blocks);
  EXPECT_EQ(plan.blocks % plan.split, 0);
  EXPECT_GE(plan.slots, 2);
  EXPECT_LE(plan.slots, kMaxStreamSlots);
  EXPECT_LE(plan.warps, kMaxStreamWarps);
  EXPECT_LE(plan.shared_bytes, static_cast<int64_t>(gpu.traits.block_bytes()));
}

TEST(CudaCodePlan, FewRowsAreStreamedOnHopperAndLater) {
  for (const auto& [name, format] : kFormats) {
    for (const auto& [features, cols] : {std::pair{1, 256}, std::pair{4096, 12288},
                                         std::pair{24576, 4096}, std::pair{151936, 2560}}) {
      CodeProduct product = product_of(format, features, cols);
      for (const Gpu& gpu : kGpus) {
        for (const int rows : {1, 8, 9, kMaxStreamRows, kMaxStreamRows + 1}) {
          SCOPED_TRACE(std::string(name) + ", " + gpu.name + ", " + std::to_string(features) +
                       " x " + std::to_string(cols) + ", rows " + std::to_string(rows));
          product.rows = rows;
          const StreamPlan plan = plan_code_stream(product, gpu.traits);
          if (gpu.traits.has_programmatic_launch && rows <= 8) {
            expect_divided(plan, product, gpu);
          } else if (!gpu.traits.has_programmatic_launch || rows > kMaxStreamRows) {
            EXPECT_EQ(plan.row_sets, 0);
          } else if (plan.row_sets > 0) {  // an RTX 5090 has no room for many rows
            expect_divided(plan, product, gpu);
          }
        }
      }
    }
  }
}

CodeProduct one_row_of(CodeProduct product) {
  product.rows = 1;
  return product;
}

// Likewise; and no warpgroup waits for rows that come once it has gone on.
void expect_divided(const CodeWgmmaPlan& plan, const CodeProduct& product, const Gpu& gpu) {
  ASSERT_GT(plan.rows, 0);
  EXPECT_GE(plan.rows, product.rows);
  EXPECT_LE(plan.groups, kMaxGroups);
  EXPECT_EQ(plan.groups % plan.k_groups, 0);
  EXPECT_GE(plan.panels * plan.features(), product.features);
  EXPECT_GE(plan.split * plan.range_blocks, product.shape.num_blocks);
  EXPECT_GE(plan.slots, 2);
  EXPECT_LE(plan.slots, kMaxGroupSlots);
  EXPECT_EQ(plan.row_stages, 1 << plan.row_shift);
  EXPECT_LE(plan.row_stages, kMaxRowStages);
  EXPECT_GE(plan.row_stages, std::min(2 * plan.k_groups, plan.range_blocks));
  EXPECT_EQ(plan.row_bytes % 1024, 0);
  EXPECT_EQ(plan.rows_offset % 1024, 0);
  const int warps = plan.groups * kGroupTiles;
  const int codes_end = plan.ring_offset + warps * plan.slots * product.shape.block_bytes;
  const int sums_end =
      plan.rows_offset + plan.k_groups * plan.rows * (plan.features() + kSumPadding) * 4;
  EXPECT_LE(plan.rows_offset + plan.row_stages * plan.row_bytes, plan.ring_offset);
  EXPECT_LE(std::max(codes_end, sums_end) + 1024, plan.shared_bytes);
  EXPECT_LE(plan.shared_bytes, static_cast<int>(gpu.traits.block_bytes()));
}

TEST(CudaCodePlan, WarpgroupsTakeSomeRowsOnHopperAlone) {
  for (const auto& [name, format] : kFormats) {
    for (const auto& [features, cols] :
         std::vector<std::pair<int, int>>{{1, 64}, {150, 1088}, {4096, 12288}, {24576, 4096}}) {
      CodeProduct product = product_of(format, features, cols);
      for (const Gpu& gpu : kGpus) {
        for (const int rows : {1, 8, 9, 33, kMaxCodeWgmmaRows, kMaxCodeWgmmaRows + 1}) {
          SCOPED_TRACE(std::string(name) + ", " + gpu.name + ", " + std::to_string(features) +
                       " x " + std::to_string(cols) + ", rows " + std::to_string(rows));
          product.rows = rows;
          const CodeWgmmaPlan plan = plan_code_wgmma(product, gpu.traits);
          const bool streams = plan_code_stream(one_row_of(product), gpu.traits).row_sets > 0;
          if (gpu.traits.has_wgmma && rows <= kMaxCodeWgmmaRows && streams &&
              scaling_of(product.shape) != Scaling::kAdded) {
            expect_divided(plan, product, gpu);
          } else {
            EXPECT_EQ(plan.rows, 0);
          }
        }
      }
    }
  }
}

TEST(CudaCodePlan, RowsThatEndWithinAUnitAreNotStreamed) {
  CodeProduct product = product_of(kFormats[0].format, 64, 96);
  product.rows = 1;
  EXPECT_EQ(plan_code_stream(product, kH200.traits).row_sets, 0);
  EXPECT_EQ(plan_code_wgmma(product, kH200.traits).rows, 0);
  EXPECT_GT(plan_code_product(product, kH200.traits).row_sets, 0);
}

// Of experts and of ranks' shares, whose groups are smaller: tiles of either size find room.
TEST(CudaCodePlan, EveryGpuTakesTilesOfExpertsAndSharesOfRanks) {
  const RowTile tile = {};
  for (const auto& [name, format] : kFormats) {
    for (const int64_t first_col : {0, 16, 32, 64}) {
      const HostMatrix share = {
          .rows = 1024, .cols = 1024, .row_stride = 2048, .first_col = first_col, .codes = &format};
      const auto parts = plan_code_parts({&share, 1}, DType::kBFloat16);
      if (parts.empty()) {  // decoded while it is loaded
        EXPECT_GT(first_col, 0) << name;
        continue;
      }
      CodeProduct product;
      product.shape = parts[0].shape;
      product.features = 1024;
      product.tiles = &tile;
      product.max_tiles = 100;
      for (const Gpu& gpu : kGpus) {
        for (const int rows : {kFewCodeRows, kCodeTileRows}) {
          SCOPED_TRACE(std::string(name) + ", " + gpu.name + ", from " + std::to_string(first_col) +
                       ", rows " + std::to_string(rows));
          product.rows = rows;
          EXPECT_GE(plan_code_product(product, gpu.traits).row_sets * 8, rows);
        }
      }
    }
  }
}

// Of experts: their tiles share the blocks that a GPU runs at once.
TEST(CudaCodePlan, ExpertsTilesShareTheBlocks) {
  CodeProduct product = product_of(kFormats[15].format, 1536, 2048);
  const RowTile tile = {};
  product.tiles = &tile;
  for (const int tiles : {8, 100, 2000}) {
    product.rows = 8;
    product.max_tiles = tiles;
    const StreamPlan plan = plan_code_stream(product, kH200.traits);
    EXPECT_EQ(plan.row_tiles, tiles);
    EXPECT_EQ(plan.split, 1);
    expect_divided(plan, product, kH200);
    EXPECT_EQ(plan_code_wgmma(product, kH200.traits).rows, 0);
    const CodePlan other = plan_code_product(product, kH200.traits);
    EXPECT_EQ(other.row_tiles, tiles);
    EXPECT_EQ(other.split, 1);
  }
}

}  // namespace
}  // namespace nanovllm::cuda
