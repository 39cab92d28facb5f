// What `info --plan` tells of published models on GPUs of all kinds; needs no device.
#include "backend/cuda/backend/plan_rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "backend/cuda/layer/layer_plan_testing.h"

namespace nanovllm::cuda {
namespace {

using Lines = std::vector<std::string>;

constexpr int kMaxRows = 8192;  // of a step
CompileLimits limits(int max_rows = kMaxRows, DType act = DType::kBFloat16) {
  return {.dtype = act, .max_num_tokens = max_rows};
}

Lines lines_of(const StackSpec& spec, const TailTraits& traits,
               const CompileLimits& limits = {.max_num_tokens = kMaxRows},
               const std::string& holder = "") {
  Lines lines;
  for (const PathChoice& choice :
       stack_choices(spec, limits, tails_of(spec, traits, limits.dtype), traits, holder)) {
    lines.push_back(to_string(choice));
  }
  return lines;
}
// Of those parts whose name has one of these words.
Lines lines_with(const Lines& lines, const std::vector<std::string>& words) {
  Lines found;
  for (const std::string& line : lines) {
    const std::string part = line.substr(0, line.rfind(": "));
    const auto is_in = [&](const std::string& word) { return part.find(word) != part.npos; };
    if (std::ranges::any_of(words, is_in)) found.push_back(line);
  }
  return found;
}
// The same with "layers 0 to 27, " before each.
Lines of_layers(const std::string& layers, Lines lines) {
  for (std::string& line : lines) line = fmt::format("{}, {}", layers, line);
  return lines;
}
Lines operator+(Lines a, const Lines& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
void expect_lines(const Lines& found, const Lines& expected) {
  EXPECT_EQ(found, expected) << fmt::format("{}", fmt::join(found, "\n"));
}

const std::vector<TailTraits> kHoppers = {h100(), h200()};
const std::vector<TailTraits> kOthers = {a100(), rtx4090(), rtx5090()};
const std::vector<TailTraits> kAll = {a100(), rtx4090(), rtx5090(), h100(), h200()};

// All of Qwen3-0.6B and 8B but the tails.
Lines attention_lines(const Lines& prompts) {
  return Lines{"attention of decodes: stream of keys and values, with norms, rotation and store",
               "attention of decodes beside prompts: stream of keys and values"} +
         prompts;
}
Lines product_lines(const std::string& part, bool in_parts = false) {
  return {fmt::format("{}, up to 8 rows: {}", part,
                      in_parts ? "parts of K by mma" : "stream of weights"),
          part + ": cuBLASLt"};
}
Lines fused_lines(const std::string& part, int max_rows) {
  return {fmt::format("{}, up to {} rows: in the tail", part, max_rows), part + ": cuBLASLt"};
}
const Lines kPromptsOnHopper = {"attention of a new prompt, up to 256 rows: mma",
                                "attention of a new prompt: wgmma",
                                "attention of a prompt behind 8192 tokens, up to 4 rows: pieces of "
                                "keys and values",
                                "attention of a prompt behind 8192 tokens: wgmma"};
const Lines kPromptsOnOthers = {"attention of a new prompt: mma",
                                "attention of a prompt behind 8192 tokens: mma"};
const std::string kIn = "attention's input product", kOut = "attention's output product",
                  kGateUp = "MLP's gate and up product", kDown = "MLP's output product";

// Only the first layer's input is no part of a tail.
Lines expected_lines(int num_layers, const Lines& tails, const Lines& first_in,
                     const Lines& prompts, int max_fused) {
  const std::string all = fmt::format("layers 0 to {}", num_layers - 1);
  const std::string others = fmt::format("layers 1 to {}", num_layers - 1);
  return of_layers(all, tails) + of_layers("layer 0", first_in) +
         of_layers(others, fused_lines(kIn, max_fused)) +
         of_layers(all, attention_lines(prompts) + fused_lines(kOut, max_fused) +
                            fused_lines(kGateUp, max_fused) + fused_lines(kDown, max_fused));
}

TEST(CudaPlan, OfQwen3SmallOnHopper) {
  for (const TailTraits& traits : kHoppers) {
    expect_lines(lines_of(spec_of(kQwen3Small), traits),
                 expected_lines(28,
                                {"tail, up to 8 rows: one kernel",
                                 "tail, up to 128 rows: chain of wgmma products", "tail: op by op"},
                                product_lines(kIn, true), kPromptsOnHopper, 128));
  }
}

TEST(CudaPlan, OfQwen3SmallOnOthers) {
  for (const TailTraits& traits : kOthers) {
    expect_lines(
        lines_of(spec_of(kQwen3Small), traits),
        expected_lines(28, {"tail, up to 8 rows: chain of streaming products", "tail: op by op"},
                       product_lines(kIn), kPromptsOnOthers, 8));
  }
}

TEST(CudaPlan, OfARecurrentLayer) {
  StackSpec spec = spec_of({1024, 8, 2, 256, 3584, 2});
  spec.layers[0].core = GatedDelta{.num_key_heads = 16,
                                   .num_value_heads = 16,
                                   .key_dim = 128,
                                   .value_dim = 128,
                                   .conv_width = 4};
  spec.layers[0].in = matrix(8224, 1024);
  for (const TailTraits& traits : kAll) {
    Lines lines = {"the recurrent rule of decodes: rows one by one",
                   "the recurrent rule of a prompt, up to 1 row: rows one by one",
                   "the recurrent rule of a prompt: rows by sixteen"};
    if (traits.device.block_bytes() > size_t{160} << 10) {
      lines.back() = "the recurrent rule of a prompt, up to 16 rows: rows by sixteen";
      lines.push_back("the recurrent rule of a prompt: chunk by chunk, 32 values a block");
    }
    expect_lines(lines_with(lines_of(spec, traits), {"recurrent rule of"}),
                 of_layers("layer 0", lines));
    EXPECT_FALSE(
        lines_with(lines_of(spec, traits), {"the recurrent rule's input product"}).empty());
  }
}

TEST(CudaPlan, OfQwen3LargeOnHopper) {
  for (const TailTraits& traits : kHoppers) {
    expect_lines(
        lines_of(spec_of(kQwen3Large), traits),
        expected_lines(
            36, {"tail, up to 8 rows: one kernel for large layers", "tail: op by op"},
            product_lines(kIn, true),
            {"attention of a new prompt, up to 128 rows: mma",  // of groups of four
             "attention of a new prompt: wgmma",
             "attention of a prompt behind 8192 tokens, up to 4 rows: pieces of keys and values",
             "attention of a prompt behind 8192 tokens: wgmma"},
            8));
  }
}

// Eight rows of 4,096 elements and the weights on their way are more than 99 KiB of shared memory,
// and gate and up have more features than streaming pays for.
TEST(CudaPlan, OfQwen3LargeOnOthers) {
  const auto of_cublas = [](const std::string& part) { return Lines{part + ": cuBLASLt"}; };
  for (const TailTraits& traits : kOthers) {
    const bool streams = traits.device.block_bytes() > 100 << 10;
    const auto expected =
        Lines{"tail: op by op"} + (streams ? product_lines(kIn) : of_cublas(kIn)) +
        attention_lines(kPromptsOnOthers) + (streams ? product_lines(kOut) : of_cublas(kOut)) +
        of_cublas(kGateUp) + of_cublas(kDown);
    expect_lines(lines_of(spec_of(kQwen3Large), traits), of_layers("layers 0 to 35", expected));
  }
}

TEST(CudaPlan, AStepOfFewRowsHasNoRowsOfLarger) {
  const auto lines = [](int max_rows) {
    return lines_with(lines_of(spec_of(kQwen3Small), h200(), limits(max_rows)),
                      {"tail", kOut, "new prompt"});
  };
  const std::string prompt = "attention of a new prompt: mma", in_tail = kOut + ": in the tail";
  expect_lines(lines(8), of_layers("layers 0 to 27", {"tail: one kernel", prompt, in_tail}));
  expect_lines(lines(9),
               of_layers("layers 0 to 27", {"tail, up to 8 rows: one kernel",
                                            "tail: chain of wgmma products", prompt, in_tail}));
  expect_lines(lines(129),
               of_layers("layers 0 to 27", Lines{"tail, up to 8 rows: one kernel",
                                                 "tail, up to 128 rows: chain of wgmma products",
                                                 "tail: op by op", prompt} +
                                               fused_lines(kOut, 128)));
}

// With so many sequences as an engine may have, their lengths find no room in the shared memory of
// mma's kernel.
TEST(CudaPlan, SequencesAreTooManyForTensorCoresWhereTheirLengthsDoNotFit) {
  const struct {
    TailTraits traits;
    int most;
  } cases[] = {
      {a100(), 28415}, {rtx4090(), 12031}, {rtx5090(), 12031}, {h100(), 44799}, {h200(), 44799}};
  for (auto [traits, most] : cases) {
    traits.deterministic = true;
    const auto lines = [&](int max_rows) {
      return lines_with(lines_of(spec_of(kQwen3Large), traits, limits(max_rows)),
                        {"attention of decodes"});
    };
    const std::string alone = "attention of decodes", mixed = "attention of decodes beside prompts";
    EXPECT_EQ(lines(most - 1), of_layers("layers 0 to 35", {alone + ": mma", mixed + ": mma"}));
    expect_lines(lines(65536), of_layers("layers 0 to 35",
                                         {fmt::format("{}, up to {} rows: mma", alone, most),
                                          alone + ": general kernel",
                                          fmt::format("{}, up to {} rows: mma", mixed, most - 1),
                                          mixed + ": general kernel"}));
    traits.deterministic = false;
    EXPECT_EQ(lines(16384)[0],
              "layers 0 to 35, attention of decodes: stream of keys and values, with norms, "
              "rotation and store");
    EXPECT_EQ(lines(16385)[0],
              "layers 0 to 35, attention of decodes, up to 16384 rows: stream of keys and values, "
              "with norms, rotation and store");
  }
}

TEST(CudaPlan, OfAFixedOrderHasPathsOfOneOrderForAllRows) {
  for (TailTraits traits : kAll) {
    traits.deterministic = true;
    const auto product = [&](const std::string& part) {
      return traits.device.has_wgmma
                 ? Lines{part + ", up to 8 rows: parts of K by mma", part + ": parts of K by wgmma"}
                 : Lines{part + ": stream of weights"};
    };
    const Lines attention = {
        "attention of decodes: mma", "attention of decodes beside prompts: mma",
        "attention of a new prompt: mma", "attention of a prompt behind 8192 tokens: mma"};
    expect_lines(
        lines_of(spec_of(kQwen3Large), traits),
        of_layers("layers 0 to 35", Lines{"tail: op by op"} + product(kIn) + attention +
                                        product(kOut) + product(kGateUp) + product(kDown)));
  }
}

TEST(CudaPlan, OfFloatsTakesGeneralKernels) {
  for (TailTraits traits : kAll) {
    for (const bool deterministic : {false, true}) {
      traits.deterministic = deterministic;
      const std::string product = deterministic ? ": float32 lanes" : ": cuBLASLt";
      expect_lines(
          lines_of(spec_of({1024, 16, 8, 128, 3072, 2}), traits, limits(8192, DType::kFloat32)),
          of_layers("layers 0 to 1",
                    {"tail: op by op", kIn + product, "attention of decodes: general kernel",
                     "attention of decodes beside prompts: general kernel",
                     "attention of a new prompt: general kernel",
                     "attention of a prompt behind 8192 tokens: general kernel", kOut + product,
                     kGateUp + product, kDown + product}));
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
  for (const TailTraits& traits : kAll) {
    const Lines experts = traits.device.has_wgmma
                              ? Lines{"experts, up to 383 rows: small tiles for wgmma",
                                      "experts: large tiles for wgmma"}
                              : Lines{"experts: tiles for float32 lanes"};
    const Lines expected =
        Lines{"router, up to 8 rows: float32 lanes", "router: cuBLASLt",
              "experts, up to 2 rows: two kernels for few rows"} +
        experts + product_lines("shared expert's gate and up product", traits.device.has_wgmma) +
        product_lines("shared expert's output product");
    expect_lines(lines_with(lines_of(mixture(), traits), {"router", "expert"}),
                 of_layers("layers 0 to 1", expected));
  }
}

// Decodes and few rows of a head size that no other kernel of tensor cores takes.
TEST(CudaPlan, OfHeadsOf80TakesPiecesOnHopper) {
  for (const TailTraits& traits : kAll) {
    const std::string pieces = "pieces of keys and values", general = "general kernel";
    const Lines chunks = {"attention of a new prompt, up to 8 rows: " + pieces,
                          "attention of a new prompt: " + general,
                          "attention of a prompt behind 8192 tokens, up to 8 rows: " + pieces,
                          "attention of a prompt behind 8192 tokens: " + general};
    const bool has = traits.device.has_wgmma;
    const std::string path = has ? pieces : general;
    expect_lines(
        lines_with(lines_of(spec_of({1024, 8, 8, 80, 3072, 2}), traits), {"attention of"}),
        of_layers(
            "layers 0 to 1",
            Lines{"attention of decodes: " + path, "attention of decodes beside prompts: " + path} +
                (has ? chunks
                     : Lines{"attention of a new prompt: " + general,
                             "attention of a prompt behind 8192 tokens: " + general})));
  }
}

TEST(CudaPlan, TellsLayersApartThatDiffer) {
  StackSpec spec = spec_of({1024, 16, 8, 128, 3072, 4});
  std::get<Attention>(spec.layers[2].core).head_dim = 80;
  for (const TailTraits& traits : kOthers) {
    expect_lines(lines_with(lines_of(spec, traits), {"new prompt"}),
                 {"layers 0 to 1, attention of a new prompt: mma",
                  "layer 2, attention of a new prompt: general kernel",
                  "layer 3, attention of a new prompt: mma"});
  }
}

// Of layers that are unlike their neighbours in one part, the other parts are one entry each.
TEST(CudaPlan, ALayerThatDiffersInOnePartIsToldApartInThatOnly) {
  const StackSpec plain = spec_of({1024, 16, 8, 128, 3072, 36});
  StackSpec spec = plain;
  spec.rotary_tables.emplace_back();
  for (size_t i = 3; i < spec.layers.size(); i += 4) {  // as in SmolLM3, nothing is rotated
    std::get<Attention>(spec.layers[i].core).rotary_table = 1;
  }
  const std::string decodes = ", attention of decodes: ";
  Lines expected;
  for (int i = 0; i < 36; i += 4) {
    expected.push_back(fmt::format("layers {} to {}{}{}", i, i + 2, decodes,
                                   "stream of keys and values, with norms, rotation and store"));
    expected.push_back(fmt::format("layer {}{}stream of keys and values", i + 3, decodes));
  }
  const auto is_of_decodes = [&](const std::string& line) {
    return line.find(decodes) != std::string::npos;
  };
  for (const TailTraits& traits : kAll) {
    Lines rest = lines_of(spec, traits), alike = lines_of(plain, traits), found;
    std::ranges::copy_if(rest, std::back_inserter(found), is_of_decodes);
    expect_lines(found, expected);
    std::erase_if(rest, is_of_decodes);
    std::erase_if(alike, is_of_decodes);
    expect_lines(rest, alike);
  }
}

TEST(CudaPlan, SaysWhoHasTheKernelsOfTails) {
  TailTraits traits = h200();
  traits.has_tail_kernel = false;
  const Lines lines = lines_of(spec_of(kQwen3Small), traits, limits(), "the engine of /models/a");
  expect_lines(lines_with(lines, {"tails in one kernel"}),
               {"layers 0 to 27, tails in one kernel: none, as the engine of /models/a has this "
                "GPU's"});
  EXPECT_EQ(lines_with(lines_of(spec_of(kQwen3Small), h200()), {"tails in one kernel"}), Lines{});
}

// Two sums a layer; of rows whose tail is one kernel they are its part.
TEST(CudaPlan, SaysHowRanksAddUp) {
  const std::string attention = "sum behind attention", mlp = "sum behind the MLP";
  const std::string shares = ": each GPU adds up a share";
  const auto lines = [&](const StackSpec& spec, TailTraits traits, bool deterministic = false) {
    traits.world_size = 2;
    traits.most_sum_bytes = 512 << 10;
    traits.deterministic = deterministic;
    return lines_with(lines_of(spec, traits), {"sum behind"});
  };
  const std::string at_once = ", up to 64 rows: sent to all GPUs at once";
  const Lines apart = {attention + at_once, attention + shares, mlp + at_once, mlp + shares};
  const Lines with_norm = {attention + at_once + ", with the norm", attention + shares,
                           mlp + at_once + ", with the norm", mlp + shares};
  const StackSpec plain = spec_of({4096, 16, 4, 128, 6144, 2});
  for (const TailTraits& traits : kAll) {
    if (traits.has_tail_kernel) {
      const std::string fused = ", up to 8 rows: in the tail";
      expect_lines(lines(plain, traits),
                   of_layers("layers 0 to 1", {attention + fused, with_norm[0], with_norm[1],
                                               mlp + fused, with_norm[2], with_norm[3]}));
    } else {
      expect_lines(lines(plain, traits), of_layers("layers 0 to 1", with_norm));
    }
    expect_lines(lines(plain, traits, true), of_layers("layers 0 to 1", apart));
    StackSpec spec = plain;
    for (LayerSpec& layer : spec.layers) layer.after_core = plain.final_norm;
    expect_lines(lines(spec, traits),
                 of_layers("layers 0 to 1", {apart[0], apart[1], with_norm[2], with_norm[3]}));
    spec = plain;
    for (LayerSpec& layer : spec.layers) layer.after_ffn = plain.final_norm;
    expect_lines(lines(spec, traits),
                 of_layers("layers 0 to 1", {with_norm[0], with_norm[1], apart[2], apart[3]}));
    spec = plain;
    for (LayerSpec& layer : spec.layers) layer.residual_scale = 0.5f;
    expect_lines(lines(spec, traits), of_layers("layers 0 to 1", apart));
    // A norm must follow: the next layer's, or of a last one without, its own (nobody's).
    spec = plain;
    spec.layers[1].before_core = {};
    expect_lines(lines_with(lines(spec, traits), {"layer 0, " + mlp}),
                 of_layers("layer 0", {apart[2], apart[3]}));
  }
}

// A head is a product as others are: streamed where its rows are not too many for the blocks,
// otherwise cuBLASLt streams it as well.
TEST(CudaPlan, OfHeads) {
  const auto lines = [](const TailTraits& traits, int vocab) {
    SkinnyProduct head = shape_of(matrix(vocab, 1024), DType::kBFloat16, nullptr);
    head.out_dtype = DType::kFloat32;
    Lines found;
    for (PathChoice choice : product_choices(head, DType::kBFloat16, traits.device, false)) {
      choice.part = "head";
      found.push_back(to_string(choice));
    }
    return found;
  };
  for (const TailTraits& traits : kAll) {
    EXPECT_EQ(lines(traits, 4096), product_lines("head", traits.device.has_wgmma));
    EXPECT_EQ(lines(traits, 32000), Lines{"head: cuBLASLt"});
    EXPECT_EQ(lines(traits, 151936), Lines{"head: cuBLASLt"});
  }
}

// The paths of whole tails take numbers only, and so do those of plain products and experts.
TEST(CudaPlan, LayersInCodesRunOpByOp) {
  static constexpr float kValues[] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
  static constexpr CodeFormat kFormat = {.values = kValues, .group_columns = 128};
  StackSpec spec = spec_of({4096, 32, 8, 128, 12288, 2});
  for (LayerSpec& layer : spec.layers) layer.out.pieces[0].codes = &kFormat;
  for (const TailTraits& traits : kAll) {
    for (const auto& tail : tails_of(spec, traits)) {
      for (const TailPath path : tail) EXPECT_EQ(path, TailPath::kOpByOp);
    }
    SkinnyProduct product = shape_of(spec.layers[0].out, DType::kBFloat16, nullptr);
    EXPECT_EQ(product.layout, WeightLayout::kGroup);
    Lines found;
    for (PathChoice choice : product_choices(product, DType::kBFloat16, traits.device, false)) {
      choice.part = "out";
      found.push_back(to_string(choice));
    }
    EXPECT_EQ(found, (Lines{"out, up to 64 rows: products with codes",
                            "out: codes decoded for cuBLASLt"}));
    // Float32 activations want numbers, which the weight becomes while it is loaded.
    EXPECT_EQ(shape_of(spec.layers[0].out, DType::kFloat32, nullptr).layout, WeightLayout::kPlain);
  }
}

TEST(CudaPlan, RangesOfRowsAreFoundWhereverTheyEnd) {
  for (const int first : {1, 2, 3, 7, 8, 100, 127, 128, 129, 1000, 32766}) {
    const auto choices = choices_by_rows("part", 32768, [&](int rows) {
      return rows <= first ? "few" : rows <= first + 1 ? "more" : "many";
    });
    ASSERT_EQ(choices.size(), 3u) << first;
    EXPECT_EQ(choices[0], (PathChoice{.part = "part", .max_rows = first, .path = "few"}));
    EXPECT_EQ(choices[1], (PathChoice{.part = "part", .max_rows = first + 1, .path = "more"}));
    EXPECT_EQ(choices[2], (PathChoice{.part = "part", .max_rows = 0, .path = "many"}));
  }
}

TEST(CudaPlan, PathsOfFewRowsMayComeBack) {
  const auto path = [](int rows) { return rows % 3 == 0 && rows <= 6 ? "third" : "other"; };
  const auto choices = choices_by_rows("part", 8192, path);
  std::vector<int> ends;
  for (const PathChoice& choice : choices) ends.push_back(choice.max_rows);
  EXPECT_EQ(ends, (std::vector<int>{2, 3, 5, 6, 0}));
  EXPECT_EQ(choices[1].path, "third");
  EXPECT_EQ(choices[4].path, "other");
}

TEST(CudaPlan, NothingIsSaidOfRowsThatNoStepHas) {
  const auto path = [](int rows) { return rows <= 8 ? "few" : "many"; };
  EXPECT_EQ(choices_by_rows("part", 8, path).size(), 1u);
  EXPECT_EQ(choices_by_rows("part", 9, path).size(), 2u);
  EXPECT_EQ(choices_by_rows("part", 1, path),
            (std::vector<PathChoice>{{.part = "part", .max_rows = 0, .path = "few"}}));
}

}  // namespace
}  // namespace nanovllm::cuda
