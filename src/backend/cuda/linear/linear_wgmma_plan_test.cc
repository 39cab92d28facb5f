// What holds for every division of a product among blocks; needs no device.
#include "backend/cuda/linear/linear_wgmma_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cuda/device/device_traits_testing.h"

namespace nanovllm::cuda {
namespace {

const int kMultiprocessors = kH100.traits.num_multiprocessors();  // an H200's as well
const auto kSharedBytes = static_cast<int>(kH100.traits.block_bytes());
constexpr int kStaticBytes = 1 << 10;  // the kernel's barriers, at most

WgmmaProduct product(Epilogue epilogue, int rows, int out_features, int in_features) {
  WgmmaProduct p;
  p.epilogue = epilogue;
  p.rows = rows;
  p.out_features = out_features;
  p.in_features = in_features;
  return p;
}

template <typename Check>
void for_all_wgmma_plans(const Check& check) {
  int taken = 0;
  for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kAdd, Epilogue::kActAndMul}) {
    for (int rows = 1; rows <= kMaxWgmmaRows; ++rows) {
      for (int out = 256; out <= 8192; out += 128) {
        for (int in = 64; in <= 8192; in += 64) {
          const WgmmaProduct p = product(epilogue, rows, out, in);
          const WgmmaPlan plan = plan_wgmma(p, kMultiprocessors);
          if (plan.features == 0) continue;
          ++taken;
          check(p, plan);
          if (::testing::Test::HasFailure()) {
            FAIL() << rows << " rows, " << out << " x " << in << " features";
          }
        }
      }
    }
  }
  EXPECT_GT(taken, 1000);
}

TEST(CudaWgmmaPlan, CoversTheProduct) {
  for_all_wgmma_plans([](const WgmmaProduct& p, const WgmmaPlan& plan) {
    EXPECT_GE(plan.rows, p.rows);
    EXPECT_GE(plan.tiles * plan.features, p.out_features);
    EXPECT_EQ(plan.k_blocks * plan.units * plan.unit * kChunk, p.in_features);
    EXPECT_EQ(plan.w_copies << plan.w_shift, plan.units);
    EXPECT_EQ(plan.rows % plan.k_blocks, 0);
  });
}

TEST(CudaWgmmaPlan, FitsInSharedMemory) {
  for_all_wgmma_plans([](const WgmmaProduct&, const WgmmaPlan& plan) {
    EXPECT_LE(static_cast<int>(plan.shared_bytes) + kStaticBytes, kSharedBytes);
    EXPECT_LE(std::max(plan.w_copies, plan.x_stages), kMaxCopies);
    EXPECT_GE(plan.x_offset, plan.w_copies * plan.w_bytes);
    EXPECT_GE(plan.received_offset, plan.x_offset + plan.x_stages * plan.x_bytes);
  });
}

// Also where a doubling leads from just too few blocks to more than there should be.
TEST(CudaWgmmaPlan, TakesFeaturesOfAnyNumberOfTiles) {
  for (const int multiprocessors : {78, 114, kMultiprocessors}) {
    for (int rows = 1; rows <= kMaxWgmmaRows; ++rows) {
      for (int out = 1024; out <= 4096; out += kTileFeatures) {
        const WgmmaPlan plan =
            plan_wgmma(product(Epilogue::kStore, rows, out, 1024), multiprocessors);
        EXPECT_GT(plan.features, 0)
            << rows << " rows, " << out << " features on " << multiprocessors << " multiprocessors";
      }
    }
  }
}

// One that is ahead could take stale rows for those it waits for.
TEST(CudaWgmmaPlan, WarpgroupsShareNoStageThatIsUsedAgain) {
  for_all_wgmma_plans([](const WgmmaProduct&, const WgmmaPlan& plan) {
    EXPECT_TRUE(plan.x_stages == plan.units || plan.x_stages % kGroups == 0) << plan.x_stages;
  });
}

TEST(CudaWgmmaPlan, LeavesOtherProductsToOthers) {
  const auto takes = [](const WgmmaProduct& p) {
    return plan_wgmma(p, kMultiprocessors).features > 0;
  };
  EXPECT_TRUE(takes(product(Epilogue::kStore, 128, 4096, 1024)));
  EXPECT_FALSE(takes(product(Epilogue::kStore, 129, 4096, 1024)));
  EXPECT_FALSE(takes(product(Epilogue::kStore, 128, 4096, 1032)));    // K in lines of 64
  EXPECT_FALSE(takes(product(Epilogue::kStore, 128, 4104, 1024)));    // features that TMA can box
  EXPECT_FALSE(takes(product(Epilogue::kStore, 128, 256, 1024)));     // too few blocks
  EXPECT_FALSE(takes(product(Epilogue::kStore, 128, 151936, 1024)));  // and too many
}

}  // namespace
}  // namespace nanovllm::cuda
