// Which kernels compute mixtures of experts; needs no device.
#include "backend/cuda/experts/expert_plan.h"

#include <gtest/gtest.h>

#include "backend/cuda/experts/experts.h"

namespace nanovllm::cuda {
namespace {

constexpr ExpertShape kQwen30B = {DType::kBFloat16, Activation::kSilu, 2048, 768, 128, 8};

DeviceTraits device_with_wgmma(bool has_wgmma) {
  DeviceTraits traits;
  traits.has_wgmma = has_wgmma;
  return traits;
}
const DeviceTraits kWithWgmma = device_with_wgmma(true);      // H100, H200
const DeviceTraits kWithoutWgmma = device_with_wgmma(false);  // A100, RTX 4090, RTX 5090

TEST(CudaExpertPlan, OfQwen30BByRows) {
  const auto path = [](int rows, const DeviceTraits& traits) {
    return plan_experts(kQwen30B, rows, traits, false);
  };
  for (const DeviceTraits* traits : {&kWithWgmma, &kWithoutWgmma}) {
    EXPECT_EQ(path(1, *traits), ExpertPath::kTwoKernels);
    EXPECT_EQ(path(2, *traits), ExpertPath::kTwoKernels);
  }
  EXPECT_EQ(path(3, kWithWgmma), ExpertPath::kSmallTiles);
  EXPECT_EQ(path(383, kWithWgmma), ExpertPath::kSmallTiles);
  EXPECT_EQ(path(384, kWithWgmma), ExpertPath::kLargeTiles);  // 24 rows an expert
  EXPECT_EQ(path(3, kWithoutWgmma), ExpertPath::kPlainTiles);
  EXPECT_EQ(path(8192, kWithoutWgmma), ExpertPath::kPlainTiles);
}

TEST(CudaExpertPlan, WhatTensorCoresDoNotTakeGoesInPlainTiles) {
  const auto path = [](ExpertShape shape, int rows) {
    return plan_experts(shape, rows, kWithWgmma, false);
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
  EXPECT_EQ(plan_experts(kQwen30B, 1, kWithWgmma, true), ExpertPath::kSmallTiles);
  EXPECT_EQ(plan_experts(kQwen30B, 1, kWithoutWgmma, true), ExpertPath::kPlainTiles);
  EXPECT_FALSE(is_router_a_product(8192, true));
  EXPECT_FALSE(is_router_a_product(8, false));
  EXPECT_TRUE(is_router_a_product(9, false));
}

TEST(CudaExpertPlan, TilesHaveTheRowsThatTheirKernelsTake) {
  EXPECT_EQ(tile_rows_of(ExpertPath::kPlainTiles), kPlainTileRows);
  EXPECT_EQ(tile_rows_of(ExpertPath::kSmallTiles), kSmallTileRows);
  EXPECT_EQ(tile_rows_of(ExpertPath::kLargeTiles), kLargeTileRows);
}

}  // namespace
}  // namespace nanovllm::cuda
