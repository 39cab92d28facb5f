// Which kernels compute mixtures of experts; needs no device.
#include "backend/cuda/experts/expert_plan.h"

#include <gtest/gtest.h>

#include "backend/cuda/device/device_traits_testing.h"
#include "backend/cuda/experts/experts.h"

namespace nanovllm::cuda {
namespace {

constexpr ExpertShape kQwen30B = {DType::kBFloat16, Activation::kSilu, 2048, 768, 128, 8};

// Of Hopper, and of all others.
ExpertPath either(const Gpu& gpu, ExpertPath with_wgmma) {
  return gpu.traits.has_wgmma ? with_wgmma : ExpertPath::kPlainTiles;
}

TEST(CudaExpertPlan, OfQwen30BByRows) {
  for (const Gpu& gpu : kGpus) {
    const auto path = [&](int rows) { return plan_experts(kQwen30B, rows, gpu.traits, false); };
    EXPECT_EQ(path(1), ExpertPath::kTwoKernels) << gpu.name;
    EXPECT_EQ(path(2), ExpertPath::kTwoKernels) << gpu.name;
    EXPECT_EQ(path(3), either(gpu, ExpertPath::kSmallTiles)) << gpu.name;
    EXPECT_EQ(path(383), either(gpu, ExpertPath::kSmallTiles)) << gpu.name;
    EXPECT_EQ(path(384), either(gpu, ExpertPath::kLargeTiles)) << gpu.name;  // 24 rows an expert
    EXPECT_EQ(path(8192), either(gpu, ExpertPath::kLargeTiles)) << gpu.name;
  }
}

TEST(CudaExpertPlan, WhatTensorCoresDoNotTakeGoesInPlainTiles) {
  const auto path = [](ExpertShape shape, int rows) {
    return plan_experts(shape, rows, kH100.traits, false);
  };
  ExpertShape shape = kQwen30B;
  shape.activation = Activation::kGelu;
  EXPECT_EQ(path(shape, 2), ExpertPath::kTwoKernels);
  EXPECT_EQ(path(shape, 8), ExpertPath::kPlainTiles);
  shape = kQwen30B;
  shape.dtype = DType::kFloat32;
  EXPECT_EQ(path(shape, 2), ExpertPath::kTwoKernels);
  EXPECT_EQ(path(shape, 8), ExpertPath::kPlainTiles);
  for (int ExpertShape::*size : {&ExpertShape::hidden, &ExpertShape::width}) {
    shape = kQwen30B;
    shape.*size += 4;
    EXPECT_EQ(path(shape, 1), ExpertPath::kPlainTiles);
    EXPECT_EQ(path(shape, 8), ExpertPath::kPlainTiles);
  }
  shape = kQwen30B;
  shape.num_active = 32;
  EXPECT_EQ(path(shape, 2), ExpertPath::kTwoKernels);
  shape.num_active = 33;
  EXPECT_EQ(path(shape, 1), ExpertPath::kTwoKernels);
  EXPECT_EQ(path(shape, 2), ExpertPath::kSmallTiles);  // 66 pairs
}

TEST(CudaExpertPlan, AFixedOrderHasNoKernelsForFewRows) {
  for (const Gpu& gpu : kGpus) {
    EXPECT_EQ(plan_experts(kQwen30B, 1, gpu.traits, true), either(gpu, ExpertPath::kSmallTiles));
  }
  EXPECT_FALSE(is_router_a_product(8192, true));
  EXPECT_FALSE(is_router_a_product(8, false));
  EXPECT_TRUE(is_router_a_product(9, false));
}

TEST(CudaExpertPlan, CodesHaveTilesByTheRowsOfAnExpert) {
  ExpertShape shape = kQwen30B;
  shape.layout = WeightLayout::kSuper;
  for (const Gpu& gpu : kGpus) {
    for (const bool deterministic : {false, true}) {
      const auto path = [&](int rows) {
        return plan_experts(shape, rows, gpu.traits, deterministic);
      };
      EXPECT_EQ(path(1), ExpertPath::kFewCodes);
      EXPECT_EQ(path(80), ExpertPath::kFewCodes);  // 5 rows an expert
      EXPECT_EQ(path(81), ExpertPath::kCodes);
      EXPECT_EQ(path(8192), ExpertPath::kCodes);
    }
  }
}

TEST(CudaExpertPlan, TilesHaveTheRowsThatTheirKernelsTake) {
  EXPECT_EQ(tile_rows_of(ExpertPath::kTwoKernels), kPlainTileRows);
  EXPECT_EQ(tile_rows_of(ExpertPath::kPlainTiles), kPlainTileRows);
  EXPECT_EQ(tile_rows_of(ExpertPath::kSmallTiles), kSmallTileRows);
  EXPECT_EQ(tile_rows_of(ExpertPath::kLargeTiles), kLargeTileRows);
  EXPECT_EQ(tile_rows_of(ExpertPath::kFewCodes), kFewCodeRows);
  EXPECT_EQ(tile_rows_of(ExpertPath::kCodes), kCodeTileRows);
}

}  // namespace
}  // namespace nanovllm::cuda
