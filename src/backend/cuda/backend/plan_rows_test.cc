// What `info --plan` tells of published models on GPUs of all kinds; needs no device.
#include "backend/cuda/backend/plan_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cuda/layer/layer_plan_testing.h"

namespace nanovllm::cuda {
namespace {

using Lines = std::vector<std::string>;

Lines lines_of(const StackSpec& spec, const TailTraits& traits, DType act = DType::kBFloat16) {
  std::vector<std::vector<TailPath>> tails;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    tails.push_back(plan_layer(spec, i, act, traits));
  }
  Lines lines;
  for (const PathChoice& choice : stack_choices(spec, act, tails, traits)) {
    lines.push_back(to_string(choice));
  }
  return lines;
}

// The lines of the whole stack, without the words that they begin with.
void expect_lines(const StackSpec& spec, const TailTraits& traits, Lines expected) {
  for (std::string& line : expected) {
    line = fmt::format("layers 0 to {}, {}", spec.layers.size() - 1, line);
  }
  const Lines found = lines_of(spec, traits);
  EXPECT_EQ(found, expected) << fmt::format("{}", fmt::join(found, "\n"));
}

const std::string kStored =
    "attention of decodes, up to 16384 rows: stream of keys and values, with norms, rotation and "
    "store";

// Devices that are no Hopper. The lengths of more sequences than this find no room in the shared
// memory of mma's kernel.
struct Other {
  TailTraits traits;
  int max_mma_rows;
};
std::vector<Other> others() { return {{a100(), 28415}, {rtx4090(), 12031}, {rtx5090(), 12031}}; }

TEST(CudaPlan, OfQwen3SmallOnHopper) {
  for (const TailTraits& traits : {h100(), h200()}) {
    expect_lines(spec_of(kQwen3Small), traits,
                 {"tail, up to 8 rows: one kernel", "tail, up to 128 rows: chain of wgmma products",
                  "tail: op by op", kStored, "attention of decodes: mma",
                  "attention of one prompt, up to 256 rows: mma", "attention of one prompt: wgmma",
                  "in, up to 8 rows: stream of weights", "in: cuBLASLt",
                  "out, up to 8 rows: stream of weights", "out: cuBLASLt",
                  "gate and up, up to 8 rows: stream of weights", "gate and up: cuBLASLt",
                  "down, up to 8 rows: stream of weights", "down: cuBLASLt"});
  }
}

TEST(CudaPlan, OfQwen3SmallOnOthers) {
  for (const auto& [traits, max_mma_rows] : others()) {
    Lines expected = {"tail, up to 8 rows: chain of streaming products", "tail: op by op", kStored};
    if (max_mma_rows > 16384) {
      expected.push_back(fmt::format("attention of decodes, up to {} rows: mma", max_mma_rows));
    }
    expected.insert(expected.end(),
                    {"attention of decodes: general kernel", "attention of one prompt: mma",
                     "in, up to 8 rows: stream of weights", "in: cuBLASLt",
                     "out, up to 8 rows: stream of weights", "out: cuBLASLt",
                     "gate and up, up to 8 rows: stream of weights", "gate and up: cuBLASLt",
                     "down, up to 8 rows: stream of weights", "down: cuBLASLt"});
    expect_lines(spec_of(kQwen3Small), traits, expected);
  }
}

TEST(CudaPlan, OfAFixedOrderHasOnePathForAllRows) {
  const Lines rest = {"attention of one prompt: mma", "in: stream of weights",
                      "out: stream of weights", "gate and up: stream of weights",
                      "down: stream of weights"};
  const auto expect = [&](TailTraits traits, const Lines& decodes) {
    traits.deterministic = true;
    Lines expected = {"tail: op by op"};
    expected.insert(expected.end(), decodes.begin(), decodes.end());
    expected.insert(expected.end(), rest.begin(), rest.end());
    expect_lines(spec_of(kQwen3Large), traits, expected);
  };
  for (const TailTraits& traits : {h100(), h200()}) expect(traits, {"attention of decodes: mma"});
  for (const auto& [traits, max_mma_rows] : others()) {
    expect(traits, {fmt::format("attention of decodes, up to {} rows: mma", max_mma_rows),
                    "attention of decodes: general kernel"});
  }
}

TEST(CudaPlan, OfFloatsTakesGeneralKernels) {
  for (TailTraits traits : {a100(), rtx4090(), rtx5090(), h100(), h200()}) {
    for (const bool deterministic : {false, true}) {
      traits.deterministic = deterministic;
      const char* product = deterministic ? "float32 lanes" : "cuBLASLt";
      const StackSpec spec = spec_of({1024, 16, 8, 128, 3072, 2});
      const std::string all = "layers 0 to 1, ";
      Lines expected = {all + "tail: op by op", all + "attention of decodes: general kernel",
                        all + "attention of one prompt: general kernel"};
      for (const char* part : {"in", "out", "gate and up", "down"}) {
        expected.push_back(fmt::format("{}{}: {}", all, part, product));
      }
      EXPECT_EQ(lines_of(spec, traits, DType::kFloat32), expected);
    }
  }
}

// A mixture with a shared expert.
StackSpec mixture() {
  StackSpec spec = spec_of({2048, 32, 4, 128, 768, 2});
  const auto dense = std::get<Dense>(spec.layers[0].ffn);
  Experts experts;
  experts.router = matrix(128, 2048);
  experts.routing.num_active = 8;
  experts.experts = std::vector<Dense>(128, dense);
  experts.shared = dense;
  experts.shared_gate = matrix(1, 2048);
  for (LayerSpec& layer : spec.layers) layer.ffn = experts;
  return spec;
}

TEST(CudaPlan, OfAMixtureHasRowsForRouterAndExperts) {
  const auto lines = [](const TailTraits& traits) {
    Lines found = lines_of(mixture(), traits);
    std::erase_if(found, [](const std::string& line) {
      return line.find("router") == std::string::npos && line.find("experts") == std::string::npos;
    });
    return found;
  };
  const std::string all = "layers 0 to 1, ";
  const Lines router = {all + "router, up to 8 rows: float32 lanes", all + "router: cuBLASLt"};
  for (const TailTraits& traits : {h100(), h200()}) {
    EXPECT_EQ(lines(traits),
              (Lines{router[0], router[1], all + "experts, up to 2 rows: two kernels",
                     all + "experts, up to 383 rows: small tiles for wgmma",
                     all + "experts: large tiles for wgmma"}));
  }
  for (const TailTraits& traits : {a100(), rtx4090(), rtx5090()}) {
    EXPECT_EQ(lines(traits),
              (Lines{router[0], router[1], all + "experts, up to 2 rows: two kernels",
                     all + "experts: tiles for float32 lanes"}));
  }
}

TEST(CudaPlan, TellsLayersApartThatDiffer) {
  StackSpec spec = spec_of({1024, 16, 8, 128, 3072, 4});
  auto& core = std::get<Attention>(spec.layers[2].core);
  core.head_dim = 80;
  const Lines lines = lines_of(spec, a100());
  const auto has = [&](const std::string& line) {
    return std::ranges::find(lines, line) != lines.end();
  };
  EXPECT_TRUE(has("layers 0 to 1, attention of one prompt: mma"));
  EXPECT_TRUE(has("layers 2 to 2, attention of one prompt: general kernel"));
  EXPECT_TRUE(has("layers 3 to 3, attention of one prompt: mma"));
}

TEST(CudaPlan, SaysHowRanksAddUpAndWhoHoldsTheKernelsOfTails) {
  TailTraits traits = h200();
  traits.world_size = 2;
  traits.most_sum_bytes = 512 << 10;
  traits.has_tail_kernel = false;
  traits.tail_kernel_holder = "engine 1 of this process";
  const Lines lines = lines_of(spec_of({4096, 16, 4, 128, 6144, 2}), traits);
  const auto has = [&](const std::string& line) {
    return std::ranges::find(lines, line) != lines.end();
  };
  EXPECT_TRUE(has("layers 0 to 1, kernels of whole tails: held by engine 1 of this process"));
  EXPECT_TRUE(has("layers 0 to 1, sums of ranks, up to 64 rows: lines, with the norm"));
  EXPECT_TRUE(has("layers 0 to 1, sums of ranks: exchange of addresses"));
}

// A head is a product as others are: streamed where its rows are not too many for the blocks,
// otherwise cuBLASLt streams it as well.
TEST(CudaPlan, OfHeads) {
  const auto lines = [](const TailTraits& traits, int vocab) {
    SkinnyProduct head = shape_of(matrix(vocab, 1024), nullptr);
    head.out_dtype = DType::kFloat32;
    Lines found;
    for (const PathChoice& choice :
         product_choices("head", head, DType::kBFloat16, traits.device, false)) {
      found.push_back(to_string(choice));
    }
    return found;
  };
  for (const TailTraits& traits : {a100(), rtx4090(), rtx5090(), h100(), h200()}) {
    EXPECT_EQ(lines(traits, 4096),
              (Lines{"head, up to 8 rows: stream of weights", "head: cuBLASLt"}));
    EXPECT_EQ(lines(traits, 32000), Lines{"head: cuBLASLt"});
    EXPECT_EQ(lines(traits, 151936), Lines{"head: cuBLASLt"});
  }
}

TEST(CudaPlan, RangesOfRowsAreFoundWhereverTheyEnd) {
  for (const int first : {1, 2, 3, 7, 8, 100, 1000, 32766}) {
    const auto choices = choices_by_rows("part", [&](int rows) {
      return rows <= first ? "few" : rows <= first + 1 ? "more" : "many";
    });
    ASSERT_EQ(choices.size(), 3u) << first;
    EXPECT_EQ(choices[0], (PathChoice{.part = "part", .max_rows = first, .path = "few"}));
    EXPECT_EQ(choices[1], (PathChoice{.part = "part", .max_rows = first + 1, .path = "more"}));
    EXPECT_EQ(choices[2], (PathChoice{.part = "part", .max_rows = 0, .path = "many"}));
  }
}

}  // namespace
}  // namespace nanovllm::cuda
