// What devices get for the layers of published models, without a device.
#include "backend/cuda/layer/layer_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "backend/cuda/layer/layer_plan_testing.h"

namespace nanovllm::cuda {
namespace {

struct Range {
  int max_rows;
  TailPath path;
};
// The ranges of the layers from `first` on that have one plan.
void expect_plan(const std::vector<PathChoice>& choices, int first, int count,
                 const std::vector<Range>& ranges) {
  std::vector<PathChoice> expected, found;
  for (const auto& [max_rows, path] : ranges) {
    expected.push_back({first, count, "tail", max_rows, to_string(path)});
  }
  for (const PathChoice& choice : choices) {
    if (choice.first_layer == first) found.push_back(choice);
  }
  EXPECT_EQ(found, expected) << [&] {
    std::string text;
    for (const PathChoice& c : choices) {
      text += fmt::format("{}+{} to {}: {}\n", c.first_layer, c.num_layers, c.max_rows, c.path);
    }
    return text;
  }();
}

TEST(CudaLayerPlan, KernelsOfWholeTailsRunWhereTheirMemoryFits) {
  for (const Gpu& gpu : kGpus) {
    EXPECT_EQ(runs_tail_kernels(gpu.traits), gpu.traits.has_wgmma) << gpu.name;
  }
  // Fields for no more blocks than 256.
  EXPECT_TRUE(runs_tail_kernels(make_gpu("", 10, 0, 256, 228).traits));
  EXPECT_FALSE(runs_tail_kernels(make_gpu("", 10, 0, 257, 228).traits));
  EXPECT_FALSE(runs_tail_kernels(make_gpu("", 8, 0, 132, 228).traits));  // no bulk copies
}

TEST(CudaLayerPlan, OfQwen3SmallOnHopper) {
  for (const TailTraits& traits : {h100(), h200()}) {
    const auto choices = plan(spec_of(kQwen3Small), traits);
    expect_plan(choices, 0, 28,
                {{8, TailPath::kOneKernel}, {128, TailPath::kWgmmaChain}, {0, TailPath::kOpByOp}});
  }
}

TEST(CudaLayerPlan, OfQwen3LargeOnHopper) {
  for (const TailTraits& traits : {h100(), h200()}) {
    const auto choices = plan(spec_of(kQwen3Large), traits);
    expect_plan(choices, 0, 36, {{8, TailPath::kLargeKernel}, {0, TailPath::kOpByOp}});
  }
}

TEST(CudaLayerPlan, WithoutTheDevicesTailKernelProductsAreChained) {
  TailTraits traits = h200();
  traits.has_tail_kernel = false;  // another engine of the process has it
  const auto choices = plan(spec_of(kQwen3Small), traits);
  expect_plan(choices, 0, 28,
              {{8, TailPath::kSkinnyChain}, {128, TailPath::kWgmmaChain}, {0, TailPath::kOpByOp}});
}

TEST(CudaLayerPlan, OfDevicesThatAreNoHopper) {
  for (const TailTraits& traits : {a100(), rtx4090(), rtx5090()}) {
    const auto choices = plan(spec_of(kQwen3Small), traits);
    expect_plan(choices, 0, 28, {{8, TailPath::kSkinnyChain}, {0, TailPath::kOpByOp}});
    expect_plan(plan(spec_of(kQwen3Large), traits), 0, 36, {{0, TailPath::kOpByOp}});
  }
}

TEST(CudaLayerPlan, RanksShareTheLargeKernelWhileSumsAreSmall) {
  TailTraits traits = h200();
  traits.world_size = 2;
  traits.most_sum_bytes = 512 << 10;
  StackSpec spec = spec_of({4096, 16, 4, 128, 6144, 2});
  expect_plan(plan(spec, traits), 0, 2, {{8, TailPath::kLargeKernel}, {0, TailPath::kOpByOp}});
  traits.most_sum_bytes = 4096 * 2 * 3;
  expect_plan(plan(spec, traits), 0, 2, {{3, TailPath::kLargeKernel}, {0, TailPath::kOpByOp}});
  traits.has_tail_kernel = false;
  expect_plan(plan(spec, traits), 0, 2, {{0, TailPath::kOpByOp}});
}

TEST(CudaLayerPlan, FloatsAndAFixedOrderGoOpByOp) {
  TailTraits traits = h200();
  expect_plan(plan(spec_of(kQwen3Small), traits, DType::kFloat32), 0, 28, {{0, TailPath::kOpByOp}});
  traits.deterministic = true;
  expect_plan(plan(spec_of(kQwen3Small), traits), 0, 28, {{0, TailPath::kOpByOp}});
}

// Each field that no fused path computes; those of the core are its own business.
TEST(CudaLayerPlan, AFieldThatNoPathHonoursIsDeclined) {
  const StackSpec plain = spec_of({1024, 16, 8, 128, 3072, 2});
  ASSERT_TRUE(honours(plain.layers[0]));
  const Norm norm = plain.final_norm;
  const std::pair<const char*, std::function<void(LayerSpec&)>> flips[] = {
      {"after_core", [&](LayerSpec& layer) { layer.after_core = norm; }},
      {"after_ffn", [&](LayerSpec& layer) { layer.after_ffn = norm; }},
      {"residual_scale", [](LayerSpec& layer) { layer.residual_scale = 0.5f; }},
  };
  for (const auto& [field, flip] : flips) {
    StackSpec spec = plain;
    flip(spec.layers[0]);
    EXPECT_FALSE(honours(spec.layers[0])) << field;
    expect_plan(plan(spec, h200()), 0, 1, {{0, TailPath::kOpByOp}});
    expect_plan(plan(spec, h200()), 1, 1,
                {{8, TailPath::kOneKernel}, {128, TailPath::kWgmmaChain}, {0, TailPath::kOpByOp}});
  }
}

TEST(CudaLayerPlan, RanksTellPlansApartByTheirFingerprints) {
  const StackSpec spec = spec_of({1024, 16, 8, 128, 3072, 2});
  const auto paths = [&](const TailTraits& traits) { return tails_of(spec, traits); };
  EXPECT_GE(fingerprint(paths(h200())), 0);
  EXPECT_EQ(fingerprint(paths(h200())), fingerprint(paths(h200())));
  EXPECT_NE(fingerprint(paths(h200())), fingerprint(paths(a100())));
  std::vector<std::vector<TailPath>> layers = paths(h200());
  layers[1][127] = TailPath::kOpByOp;
  EXPECT_NE(fingerprint(layers), fingerprint(paths(h200())));
}

TEST(CudaLayerPlan, WithoutTheNormsOfATailItRunsOpByOp) {
  const StackSpec plain = spec_of({1024, 16, 8, 128, 3072, 2});
  for (Norm LayerSpec::*norm : {&LayerSpec::before_ffn, &LayerSpec::before_core}) {
    StackSpec spec = plain;
    const size_t layer = norm == &LayerSpec::before_ffn ? 0 : 1;  // a tail ends at the next layer
    spec.layers[layer].*norm = {};
    expect_plan(plan(spec, h200()), 0, 1, {{0, TailPath::kOpByOp}});
  }
}

TEST(CudaLayerPlan, AStageWithoutAFinalNormEndsOpByOp) {
  StackSpec spec = spec_of({1024, 16, 8, 128, 3072, 2});
  spec.final_norm = {};
  expect_plan(plan(spec, h200()), 1, 1, {{0, TailPath::kOpByOp}});
}

}  // namespace
}  // namespace nanovllm::cuda
