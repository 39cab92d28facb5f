// What holds for every division of a product among blocks, on GPUs of all sizes; needs no device.
#include "backend/cuda/linear/linear_skinny_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "backend/cuda/device/device_traits_testing.h"

namespace nanovllm::cuda {
namespace {

using skinny::Plan;
using skinny::plan_of;

const Gpu kL40s = make_gpu("L40S", 8, 9, 142, 100);
const Gpu kSkinnyGpus[] = {kA100, kL40s, kRtx4090, kRtx5090, kH100, kH200};

struct Model {
  const char* name;
  int hidden_size, heads, kv_heads, head_dim, width;
};
constexpr Model kModels[] = {
    {"Qwen3-0.6B", 1024, 16, 8, 128, 3072},   {"Qwen3-1.7B", 2048, 16, 8, 128, 6144},
    {"Qwen3-4B", 2560, 32, 8, 128, 9728},     {"Qwen3-8B", 4096, 32, 8, 128, 12288},
    {"Qwen3-14B", 5120, 40, 8, 128, 17408},   {"Qwen3-32B", 5120, 64, 8, 128, 25600},
    {"Llama-3.2-1B", 2048, 32, 8, 64, 8192},  {"Llama-3.2-3B", 3072, 24, 8, 128, 8192},
    {"Llama-3.1-8B", 4096, 32, 8, 128, 14336}};

enum Name { kQkvShape, kOutputShape, kGateUpShape, kDownShape };
constexpr std::array kNames = {"qkv", "o", "gate_up", "down"};

// The products of a layer as layer_tail() has them, or one by one.
std::array<SkinnyProduct, 4> products_of(const Model& m, bool fused) {
  static constexpr float kNorm = 1;
  std::array<SkinnyProduct, 4> products;
  const int out[] = {(m.heads + 2 * m.kv_heads) * m.head_dim, m.hidden_size, 2 * m.width,
                     m.hidden_size};
  const int in[] = {m.hidden_size, m.heads * m.head_dim, m.hidden_size, m.width};
  for (size_t i = 0; i < products.size(); ++i) {
    products[i].out_features = out[i];
    products[i].in_features = in[i];
  }
  if (!fused) return products;
  products[kQkvShape].norm.weight = products[kGateUpShape].norm.weight = &kNorm;
  products[kOutputShape].epilogue = products[kDownShape].epilogue = Epilogue::kAdd;
  products[kGateUpShape].epilogue = Epilogue::kActAndMul;
  return products;
}

// check(product, plan, gpu) for every product of every model on every GPU that has a plan.
template <typename Check>
void for_all_skinny_plans(const Check& check) {
  int taken = 0;
  for (const Gpu& gpu : kSkinnyGpus) {
    for (const Model& model : kModels) {
      for (const bool fused : {false, true}) {
        for (const bool fixed_order : {false, true}) {
          if (fused && fixed_order) continue;
          const auto products = products_of(model, fused);
          for (size_t i = 0; i < products.size(); ++i) {
            for (int rows = 1; rows <= 2 * kFixedOrderRows; ++rows) {
              SCOPED_TRACE(::testing::Message() << kNames[i] << " of " << model.name << ", " << rows
                                                << " rows on " << gpu.name);
              SkinnyProduct p = products[i];
              p.rows = rows;
              p.fixed_order = fixed_order;
              const Plan plan = plan_of(p, gpu.traits.properties);
              if (plan.tiles == 0) continue;
              ++taken;
              check(p, plan, gpu.traits.properties);
              if (::testing::Test::HasFailure()) return;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(taken, 1000);
}

TEST(CudaSkinnyPlan, FitsTheDevice) {
  for_all_skinny_plans([](const SkinnyProduct&, const Plan& plan, const cudaDeviceProp& device) {
    EXPECT_LE(plan.shared_bytes, device.sharedMemPerBlockOptin);
    const int resident =
        (plan.blocks + device.multiProcessorCount - 1) / device.multiProcessorCount;
    EXPECT_LE(resident * (plan.shared_bytes + 1024), device.sharedMemPerMultiprocessor);
    EXPECT_TRUE(plan.cluster == 1 || device.major >= 9);
  });
}

// And the parts of shared memory lie behind each other.
TEST(CudaSkinnyPlan, CoversTheProduct) {
  for_all_skinny_plans([](const SkinnyProduct& p, const Plan& plan, const cudaDeviceProp&) {
    EXPECT_GE(plan.groups * plan.tiles * 8, p.out_features);
    EXPECT_GE(plan.units * plan.cluster * skinny::kBlockUnit, p.in_features);
    EXPECT_EQ(plan.blocks % plan.cluster, 0);
    EXPECT_TRUE(plan.rows_at_once == p.rows || p.fixed_order);
    const int64_t rows = skinny::row_sets_of(std::min(p.rows, plan.rows_at_once)) * 8;
    const int64_t x_bytes = rows * (plan.x_units * skinny::kBlockUnit + skinny::kPad) * 2;
    const int64_t sum_bytes = rows * plan.tiles * 8 * skinny::kWarps * 4;
    const int64_t slot_bytes = int64_t{plan.stages} * plan.tiles * 2 * skinny::kThreads * 16;
    const int64_t norm_bytes = p.norm.weight == nullptr ? 0 : p.in_features * 4;
    EXPECT_LE(x_bytes + sum_bytes + slot_bytes + norm_bytes, plan.shared_bytes);
    const int rounds = (plan.groups * plan.cluster + plan.blocks - 1) / plan.blocks;
    EXPECT_GE(plan.stages, std::min(skinny::stages_of(plan.tiles), rounds * plan.units));
  });
}

TEST(CudaSkinnyPlan, FixedOrderTakesEveryProductAndDividesItAlike) {
  for (const Gpu& gpu : kSkinnyGpus) {
    for (const Model& model : kModels) {
      for (SkinnyProduct p : products_of(model, /*fused=*/false)) {
        p.fixed_order = true;
        p.rows = 1;
        const Plan one = plan_of(p, gpu.traits.properties);
        EXPECT_GT(one.tiles, 0) << model.name << " on " << gpu.name;
        for (p.rows = 2; p.rows <= 2 * kFixedOrderRows; ++p.rows) {
          const Plan many = plan_of(p, gpu.traits.properties);
          EXPECT_EQ(many.tiles, one.tiles);
          EXPECT_EQ(many.cluster, one.cluster);
          EXPECT_EQ(many.rows_at_once, one.rows_at_once);
        }
      }
    }
  }
}

// Only a row that does not fit as a whole comes in slices, and only in a fixed order: otherwise
// cuBLASLt takes the product.
TEST(CudaSkinnyPlan, TakesRowsInSlicesWhereSharedMemoryEnds) {
  for_all_skinny_plans([](const SkinnyProduct& p, const Plan& plan, const cudaDeviceProp&) {
    EXPECT_TRUE(plan.x_units == plan.units || p.fixed_order);
  });
  SkinnyProduct p = {{.rows = 8, .out_features = 4096, .in_features = 3072}};
  p.fixed_order = true;
  EXPECT_EQ(plan_of(p, kRtx4090.traits.properties).x_units, 6);
  p.in_features = 3080;
  EXPECT_LT(plan_of(p, kRtx4090.traits.properties).x_units, 7);
  p.fixed_order = false;
  EXPECT_EQ(plan_of(p, kRtx4090.traits.properties).tiles, 0);
}

TEST(CudaSkinnyPlan, LeavesOtherProductsToOthers) {
  SkinnyProduct p = {{.rows = kMaxSkinnyRows, .out_features = 4096, .in_features = 1024}};
  EXPECT_GT(plan_of(p, kH100.traits.properties).tiles, 0);
  p.rows = kMaxSkinnyRows + 1;
  EXPECT_EQ(plan_of(p, kH100.traits.properties).tiles, 0);
  p.rows = 1;
  p.in_features = 1028;  // K in vectors of 8
  EXPECT_EQ(plan_of(p, kH100.traits.properties).tiles, 0);
}

// {tiles, cluster, stages, blocks, bytes of shared memory}
using Numbers = std::array<int64_t, 5>;
Numbers numbers_of(SkinnyProduct p, int rows, const Gpu& gpu) {
  p.rows = rows;
  const Plan plan = plan_of(p, gpu.traits.properties);
  if (plan.tiles == 0) return {};
  return {plan.tiles, plan.cluster, plan.stages, plan.blocks, plan.shared_bytes};
}

// First decodes that asked for more than there was: 129 KiB and 168.
TEST(CudaSkinnyPlan, SmallerGpusGetSmallerPlans) {
  const auto small = products_of(kModels[0], /*fused=*/true);
  EXPECT_EQ(numbers_of(small[kGateUpShape], 8, kH100), (Numbers{6, 1, 2, 128, 131616}));
  EXPECT_EQ(numbers_of(small[kGateUpShape], 8, kRtx4090), (Numbers{2, 1, 4, 128, 90656}));
  EXPECT_EQ(numbers_of(small[kGateUpShape], 8, kRtx5090), (Numbers{2, 1, 4, 170, 90656}));
  const auto large = products_of(kModels[3], /*fused=*/true);
  EXPECT_EQ(numbers_of(large[kQkvShape], 8, kA100), (Numbers{2, 1, 4, 108, 152096}));
  EXPECT_EQ(numbers_of(large[kQkvShape], 8, kRtx4090), Numbers{});  // 132 KiB at least
  for (const Gpu& gpu : kSkinnyGpus) {
    for (const SkinnyProduct& p : small) EXPECT_NE(numbers_of(p, 8, gpu), Numbers{}) << gpu.name;
  }
}

TEST(CudaSkinnyPlan, OfHopperIsWhatWasMeasuredToBeBest) {
  // By model, for 1 and 8 rows: q, k and v; attention's output; gate and up; the MLP's output.
  constexpr Numbers kPlans[][2][4] = {
      {{Numbers{4, 1, 2, 128, 94752}, Numbers{1, 1, 4, 128, 68096}, Numbers{6, 1, 2, 128, 131616},
        Numbers{1, 1, 6, 128, 100864}},
       {Numbers{4, 1, 2, 128, 94752}, Numbers{4, 4, 1, 128, 50688}, Numbers{6, 1, 2, 128, 131616},
        Numbers{2, 2, 3, 128, 78848}}},
      {{Numbers{4, 1, 3, 128, 148000}, Numbers{2, 1, 4, 128, 102912}, Numbers{6, 1, 2, 132, 152096},
        Numbers{2, 1, 4, 128, 168448}},
       {Numbers{4, 1, 3, 128, 148000}, Numbers{4, 2, 2, 128, 91648}, Numbers{6, 1, 2, 132, 152096},
        Numbers{4, 2, 3, 128, 157184}}},
      {{Numbers{6, 1, 2, 128, 162336}, Numbers{1, 1, 6, 132, 117248}, Numbers{4, 1, 3, 132, 158240},
        Numbers{1, 1, 6, 132, 207360}},
       {Numbers{6, 1, 2, 128, 162336}, Numbers{6, 2, 2, 108, 145408}, Numbers{4, 1, 3, 132, 158240},
        Numbers{6, 2, 2, 108, 194560}}},
      {{Numbers{6, 1, 2, 128, 193056}, Numbers{4, 1, 3, 128, 172544}, Numbers{6, 1, 2, 132, 193056},
        Numbers{}},
       {Numbers{6, 1, 2, 128, 193056}, Numbers{4, 1, 3, 128, 172544}, Numbers{6, 1, 2, 132, 193056},
        Numbers{}}},
      {{Numbers{1, 1, 6, 132, 154144}, Numbers{1, 1, 6, 132, 133632}, Numbers{}, Numbers{}},
       {Numbers{1, 1, 6, 132, 154144}, Numbers{1, 1, 6, 132, 133632}, Numbers{}, Numbers{}}},
      {{Numbers{2, 1, 4, 132, 172576}, Numbers{1, 1, 6, 132, 182784}, Numbers{}, Numbers{}},
       {Numbers{2, 1, 4, 132, 172576}, Numbers{1, 1, 6, 132, 182784}, Numbers{}, Numbers{}}},
      {{Numbers{1, 1, 6, 264, 92704}, Numbers{2, 1, 4, 128, 102912}, Numbers{4, 1, 3, 132, 148000},
        Numbers{2, 1, 4, 128, 201216}},
       {Numbers{1, 1, 6, 264, 92704}, Numbers{4, 2, 2, 128, 91648}, Numbers{4, 1, 3, 132, 148000},
        Numbers{4, 2, 3, 128, 173568}}},
      {{Numbers{1, 1, 6, 264, 113184}, Numbers{1, 1, 6, 264, 100864}, Numbers{4, 1, 3, 132, 168480},
        Numbers{1, 1, 6, 132, 182784}},
       {Numbers{1, 1, 6, 264, 113184}, Numbers{6, 2, 2, 128, 137216}, Numbers{4, 1, 3, 132, 168480},
        Numbers{6, 2, 2, 128, 178176}}},
      {{Numbers{6, 1, 2, 128, 193056}, Numbers{4, 1, 3, 128, 172544}, Numbers{4, 1, 3, 132, 188960},
        Numbers{}},
       {Numbers{6, 1, 2, 128, 193056}, Numbers{4, 1, 3, 128, 172544}, Numbers{4, 1, 3, 132, 188960},
        Numbers{}}},
  };
  static_assert(std::size(kPlans) == std::size(kModels));
  for (size_t model = 0; model < std::size(kModels); ++model) {
    const auto products = products_of(kModels[model], /*fused=*/true);
    for (size_t i = 0; i < products.size(); ++i) {
      EXPECT_EQ(numbers_of(products[i], 1, kH100), kPlans[model][0][i])
          << kNames[i] << " of " << kModels[model].name << ", 1 row";
      EXPECT_EQ(numbers_of(products[i], 8, kH100), kPlans[model][1][i])
          << kNames[i] << " of " << kModels[model].name << ", 8 rows";
    }
  }
}

}  // namespace
}  // namespace nanovllm::cuda
