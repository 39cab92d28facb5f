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

// Where there are kernels for parts; elsewhere the weights are streamed.
ProductPath path_on(const Gpu& gpu, ProductPath parts) {
  return gpu.traits.has_wgmma ? parts : ProductPath::kStream;
}

TEST(CudaProductPlan, FewRowsStreamTheWeightsAndMoreAreCublas) {
  for (const Gpu& gpu : kGpus) {
    const auto path = [&](const SkinnyProduct& p) {
      return plan_product(p, DType::kBFloat16, gpu.traits).path;
    };
    EXPECT_EQ(path(product(1)), path_on(gpu, ProductPath::kFewParts)) << gpu.name;
    EXPECT_EQ(path(product(8)), path_on(gpu, ProductPath::kFewParts)) << gpu.name;
    EXPECT_EQ(path(product(9)), ProductPath::kCublas) << gpu.name;
    for (const int rows : {1, 3, 8}) {
      SkinnyProduct p = product(rows);
      p.out_features = 1024;
      EXPECT_EQ(path(p), path_on(gpu, ProductPath::kFewParts)) << gpu.name << ", " << rows;
      p.in_features = 512;
      EXPECT_EQ(path(p), ProductPath::kStream) << gpu.name << ", " << rows;
    }
    SkinnyProduct p = product(1);
    p.out_features = 151936;  // so many that cuBLASLt streams them as well
    EXPECT_EQ(path(p), ProductPath::kCublas) << gpu.name;
    p = product(1);
    p.in_features = 1028;  // no whole vectors
    EXPECT_EQ(path(p), ProductPath::kCublas) << gpu.name;
  }
}

TEST(CudaProductPlan, AFixedOrderIsOneForAllRows) {
  for (const Gpu& gpu : kGpus) {
    for (const int rows : {1, 8, 9, 32, 33, 8192}) {
      const auto path = [&](SkinnyProduct p, DType dtype) {
        return plan_product(p, dtype, gpu.traits).path;
      };
      const ProductPath parts = rows <= 8 ? ProductPath::kFewParts : ProductPath::kManyParts;
      SkinnyProduct p = product(rows, true);
      EXPECT_EQ(path(p, DType::kFloat32), ProductPath::kFloat) << gpu.name << ", " << rows;
      for (const int features : {1, 8, 4096, 151936}) {
        p.out_features = features;
        EXPECT_EQ(path(p, DType::kBFloat16), path_on(gpu, parts)) << gpu.name << ", " << rows;
      }
      p.in_features = 120;  // fewer steps than parts
      EXPECT_EQ(path(p, DType::kBFloat16), ProductPath::kStream) << gpu.name << ", " << rows;
    }
  }
}

TEST(CudaProductPlan, FloatsAreCublasUnlessTheirOrderIsFixed) {
  for (const Gpu& gpu : kGpus) {
    for (const int rows : {1, 8, 9, 8192}) {
      EXPECT_EQ(plan_product(product(rows), DType::kFloat32, gpu.traits).path,
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
        return plan_product(p, DType::kBFloat16, gpu.traits).path;
      };
      EXPECT_EQ(path(1, false), ProductPath::kCodes);
      EXPECT_EQ(path(kMaxCodeRows, false), ProductPath::kCodes);
      EXPECT_EQ(path(kMaxCodeRows + 1, false), ProductPath::kDecoded);
      EXPECT_EQ(path(8192, true), ProductPath::kCodes);
    }
  }
}

// The launch takes the division of the plan.
TEST(CudaProductPlan, OfAPathItHasTheDivisionAndOfOthersNone) {
  for (const Gpu& gpu : kGpus) {
    SkinnyProduct p = product(8);
    p.in_features = 512;
    const skinny::Plan direct = skinny::plan_of(p, gpu.traits.properties);
    ProductPlan plan = plan_product(p, DType::kBFloat16, gpu.traits);
    EXPECT_GT(direct.tiles, 0);
    EXPECT_EQ(plan.stream.tiles, direct.tiles);
    EXPECT_EQ(plan.stream.blocks, direct.blocks);
    EXPECT_EQ(plan.stream.shared_bytes, direct.shared_bytes);
    EXPECT_EQ(plan.few_parts.tiles, 0);
    p.rows = 9;
    EXPECT_EQ(plan_product(p, DType::kBFloat16, gpu.traits).stream.tiles, 0);
    if (!gpu.traits.has_wgmma) continue;
    const int multiprocessors = gpu.traits.num_multiprocessors();
    p = product(8, true);
    plan = plan_product(p, DType::kBFloat16, gpu.traits);
    EXPECT_GT(plan.few_parts.blocks, 0);
    EXPECT_EQ(plan.few_parts.blocks, plan_few_parts(in_parts(p), multiprocessors).blocks);
    EXPECT_EQ(plan.many_parts.blocks, 0);
    p.rows = 9;
    plan = plan_product(p, DType::kBFloat16, gpu.traits);
    EXPECT_GT(plan.many_parts.blocks, 0);
    EXPECT_EQ(plan.many_parts.blocks, plan_many_parts(in_parts(p), multiprocessors).blocks);
    EXPECT_EQ(plan.few_parts.blocks, 0);
  }
}

}  // namespace
}  // namespace nanovllm::cuda
