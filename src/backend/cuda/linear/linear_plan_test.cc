// Which kernels multiply; needs no device.
#include "backend/cuda/linear/linear_plan.h"

#include <gtest/gtest.h>

#include "backend/cuda/device/device_traits_testing.h"

namespace nanovllm::cuda {
namespace {

// Qwen3-0.6B's attention's input.
SkinnyProduct product(int rows, bool fixed_order = false) {
  SkinnyProduct p = {{.rows = rows, .out_features = 4096, .in_features = 1024}};
  p.fixed_order = fixed_order;
  return p;
}

TEST(CudaProductPlan, FewRowsStreamTheWeightsAndMoreAreCublas) {
  for (const Gpu& gpu : kGpus) {
    const auto path = [&](const SkinnyProduct& p) {
      return plan_product(p, DType::kBFloat16, gpu.traits.properties).path;
    };
    EXPECT_EQ(path(product(1)), ProductPath::kStream) << gpu.name;
    EXPECT_EQ(path(product(8)), ProductPath::kStream) << gpu.name;
    EXPECT_EQ(path(product(9)), ProductPath::kCublas) << gpu.name;
    SkinnyProduct p = product(1);
    p.out_features = 151936;  // so many that cuBLASLt streams them as well
    EXPECT_EQ(path(p), ProductPath::kCublas) << gpu.name;
    p = product(1);
    p.in_features = 1028;  // no whole vectors
    EXPECT_EQ(path(p), ProductPath::kCublas) << gpu.name;
  }
}

TEST(CudaProductPlan, AFixedOrderHasOnePathForAllRows) {
  for (const Gpu& gpu : kGpus) {
    for (const int rows : {1, 8, 9, 32, 33, 8192}) {
      const auto path = [&](DType dtype) {
        return plan_product(product(rows, true), dtype, gpu.traits.properties).path;
      };
      EXPECT_EQ(path(DType::kBFloat16), ProductPath::kStream) << gpu.name << ", " << rows;
      EXPECT_EQ(path(DType::kFloat32), ProductPath::kFloat) << gpu.name << ", " << rows;
    }
  }
}

TEST(CudaProductPlan, FloatsAreCublasUnlessTheirOrderIsFixed) {
  for (const Gpu& gpu : kGpus) {
    for (const int rows : {1, 8, 9, 8192}) {
      EXPECT_EQ(plan_product(product(rows), DType::kFloat32, gpu.traits.properties).path,
                ProductPath::kCublas);
    }
  }
}

TEST(CudaProductPlan, WeightsInCodesHavePathsOfTheirOwn) {
  for (const Gpu& gpu : kGpus) {
    for (const WeightLayout layout :
         {WeightLayout::kGroup, WeightLayout::kByte, WeightLayout::kSuper}) {
      const auto path = [&](int rows, bool fixed_order) {
        SkinnyProduct p = product(rows, fixed_order);
        p.layout = layout;
        EXPECT_EQ(skinny::plan_of(p, gpu.traits.properties).tiles, 0);
        return plan_product(p, DType::kBFloat16, gpu.traits.properties).path;
      };
      EXPECT_EQ(path(1, false), ProductPath::kCodes);
      EXPECT_EQ(path(kMaxCodeRows, false), ProductPath::kCodes);
      EXPECT_EQ(path(kMaxCodeRows + 1, false), ProductPath::kDecoded);
      EXPECT_EQ(path(8192, true), ProductPath::kCodes);
    }
  }
}

// The launch takes the division of the plan.
TEST(CudaProductPlan, OfAStreamItHasTheDivisionAndOfOthersNone) {
  for (const Gpu& gpu : kGpus) {
    const auto plan = [&](int rows) {
      return plan_product(product(rows), DType::kBFloat16, gpu.traits.properties).stream;
    };
    const skinny::Plan direct = skinny::plan_of(product(8), gpu.traits.properties);
    EXPECT_GT(direct.tiles, 0);
    EXPECT_EQ(plan(8).tiles, direct.tiles);
    EXPECT_EQ(plan(8).blocks, direct.blocks);
    EXPECT_EQ(plan(8).shared_bytes, direct.shared_bytes);
    EXPECT_EQ(plan(9).tiles, 0);
  }
}

}  // namespace
}  // namespace nanovllm::cuda
