// What devices get for the layers of published models, without a device.
#include "backend/cuda/layer/layer_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/experts/experts.h"
#include "base/check.h"

namespace nanovllm::cuda {
namespace {

TailTraits traits_of(int major, int minor, int multiprocessors, size_t block_bytes,
                     size_t multiprocessor_bytes) {
  TailTraits traits;
  traits.device.major = major;
  traits.device.minor = minor;
  traits.device.multiProcessorCount = multiprocessors;
  traits.device.sharedMemPerBlockOptin = block_bytes << 10;
  traits.device.sharedMemPerMultiprocessor = multiprocessor_bytes << 10;
  return traits;
}

TailTraits h200() {
  TailTraits traits = traits_of(9, 0, 132, 227, 228);
  traits.has_tail_kernel = traits.has_wgmma_kernels = true;
  return traits;
}
TailTraits a100() { return traits_of(8, 0, 108, 163, 164); }
TailTraits rtx4090() { return traits_of(8, 9, 128, 99, 100); }

struct Sizes {
  int hidden, heads, kv_heads, head_dim, width, layers;
};
constexpr Sizes kQwen3Small = {1024, 16, 8, 128, 3072, 28};
constexpr Sizes kQwen3Large = {4096, 32, 8, 128, 12288, 36};

Matrix matrix(int64_t rows, int64_t cols) {
  return {.pieces = {{.rows = rows, .cols = cols, .row_stride = cols}}, .bias = {}};
}

StackSpec spec_of(const Sizes& s) {
  const Norm norm = {std::vector<float>(s.hidden, 1.0f), 1e-6f};
  LayerSpec layer;
  layer.before_core = layer.before_ffn = norm;
  layer.in = matrix((s.heads + 2 * s.kv_heads) * s.head_dim, s.hidden);
  layer.core = Attention{.num_heads = s.heads,
                         .num_kv_heads = s.kv_heads,
                         .head_dim = s.head_dim,
                         .q_norm = {},
                         .k_norm = {}};
  layer.out = matrix(s.hidden, s.heads * s.head_dim);
  layer.ffn = Dense{matrix(2 * s.width, s.hidden), Activation::kSilu, matrix(s.hidden, s.width)};
  return {.hidden_size = s.hidden,
          .layers = std::vector<LayerSpec>(s.layers, layer),
          .final_norm = norm,
          .rotary_tables = {}};
}

std::vector<PathChoice> plan(const StackSpec& spec, const TailTraits& traits,
                             DType act = DType::kBFloat16) {
  std::vector<std::vector<TailPath>> layers;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    layers.push_back(plan_layer(spec, i, act, traits));
  }
  return summary(layers);
}

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

TEST(CudaLayerPlan, OfQwen3SmallOnAnH200) {
  const auto choices = plan(spec_of(kQwen3Small), h200());
  expect_plan(choices, 0, 28,
              {{8, TailPath::kOneKernel}, {128, TailPath::kWgmmaChain}, {0, TailPath::kOpByOp}});
}

TEST(CudaLayerPlan, OfQwen3LargeOnAnH200) {
  const auto choices = plan(spec_of(kQwen3Large), h200());
  expect_plan(choices, 0, 36, {{8, TailPath::kLargeKernel}, {0, TailPath::kOpByOp}});
}

TEST(CudaLayerPlan, WithoutTheDevicesTailKernelProductsAreChained) {
  TailTraits traits = h200();
  traits.has_tail_kernel = false;  // another engine of the process has it
  const auto choices = plan(spec_of(kQwen3Small), traits);
  expect_plan(choices, 0, 28,
              {{8, TailPath::kSkinnyChain}, {128, TailPath::kWgmmaChain}, {0, TailPath::kOpByOp}});
}

TEST(CudaLayerPlan, OfDevicesBeforeHopper) {
  for (const TailTraits& traits : {a100(), rtx4090()}) {
    const auto choices = plan(spec_of(kQwen3Small), traits);
    expect_plan(choices, 0, 28, {{8, TailPath::kSkinnyChain}, {0, TailPath::kOpByOp}});
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
  const auto paths = [&](const TailTraits& traits) {
    std::vector<std::vector<TailPath>> layers;
    for (size_t i = 0; i < spec.layers.size(); ++i) {
      layers.push_back(plan_layer(spec, i, DType::kBFloat16, traits));
    }
    return layers;
  };
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

std::string refusal(const StackSpec& spec) {
  try {
    check_shapes(spec, "cuda (a GPU)");
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    return error.what();
  }
}

TEST(CudaShapes, ABackendRefusesThemBeforeItHasWeights) {
  if (CudaBackend::device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  CudaBackend backend;
  const auto expect_refusal = [](const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
    }
  };
  EXPECT_NO_THROW(backend.check(spec_of({1024, 2, 2, 256, 64, 2})));
  expect_refusal([&] { backend.check(spec_of({1024, 2, 2, 264, 64, 2})); });
  Experts experts;
  experts.router = matrix(kMaxExperts + 1, 1024);
  expect_refusal([&] { backend.make_experts(experts, DType::kBFloat16, 1); });
}

TEST(CudaShapes, ThoseThatNoKernelTakesAreRefused) {
  const auto of_head_dim = [](int dim) { return refusal(spec_of({1024, 2, 2, dim, 64, 2})); };
  EXPECT_EQ(of_head_dim(8), "");
  EXPECT_EQ(of_head_dim(256), "");
  EXPECT_EQ(of_head_dim(264),
            "cuda (a GPU): 264 elements a head of attention; at most 256, in multiples of 8, are "
            "supported here, use the device cpu");
  EXPECT_NE(of_head_dim(252), "");
  const auto of_hidden = [](int hidden) { return refusal(spec_of({hidden, 2, 2, 64, 64, 2})); };
  EXPECT_EQ(of_hidden(16384), "");
  EXPECT_EQ(of_hidden(16388),
            "cuda (a GPU): 16388 elements a hidden state; at most 16384 are supported here, use "
            "the device cpu");
  EXPECT_EQ(of_hidden(8190), "");
  EXPECT_EQ(of_hidden(8194),
            "cuda (a GPU): 8194 elements a hidden state; at most 8192 that are no multiple of 4 "
            "are supported here, use the device cpu");
  const auto of_experts = [](int count) {
    StackSpec spec = spec_of({1024, 2, 2, 64, 64, 2});
    Experts experts;
    experts.router = matrix(count, 1024);
    spec.layers.back().ffn = experts;
    return refusal(spec);
  };
  EXPECT_EQ(of_experts(1024), "");
  EXPECT_EQ(of_experts(1025),
            "cuda (a GPU): 1025 experts a layer; at most 1024 are supported here, use the device "
            "cpu");
}

// What is planned above for an H200 is what a Hopper GPU runs.
TEST(CudaProgram, RunsOnThisGpuWhatIsPlannedForIt) {
  if (CudaBackend::device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  const Sizes sizes = {1024, 16, 8, 128, 3072, 3};
  const std::vector<BFloat16> zeros(size_t{6144} * 1024);
  StackSpec spec = spec_of(sizes);
  spec.rotary_tables = {{std::vector<float>(size_t{16} * 128), 128}};
  for (LayerSpec& layer : spec.layers) {
    auto& ffn = std::get<Dense>(layer.ffn);
    for (Matrix* matrix : {&layer.in, &layer.out, &ffn.gate_up, &ffn.down}) {
      matrix->pieces[0].data = zeros.data();
      matrix->pieces[0].dtype = DType::kBFloat16;
    }
  }
  for (const bool deterministic : {false, true}) {
    CudaBackend backend({0, deterministic});
    const auto program =
        backend.compile(spec, {.dtype = DType::kBFloat16, .max_num_tokens = 256, .num_threads = 2});
    std::vector<PathChoice> tails = program->plan();
    std::erase_if(tails, [](const PathChoice& choice) { return choice.part != "tail"; });
    const bool is_hopper = backend.tail_traits().device.major == 9;
    EXPECT_EQ(tails, plan(spec, backend.tail_traits()));
    if (deterministic || !is_hopper) continue;
    EXPECT_EQ(tails, plan(spec, h200())) << "an H200's paths are those of every Hopper GPU";
  }
}

}  // namespace
}  // namespace nanovllm::cuda
