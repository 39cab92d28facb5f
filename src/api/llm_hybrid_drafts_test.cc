// Drafts change no token of models with recurrent layers: what is wrong in a verification is a
// shorter log, wherever chunks end, states are kept, and sequences give up their blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "api/drafts_testing.h"
#include "api/outputs_testing.h"
#include "base/testing.h"
#include "engine/model_drafter.h"
#include "nanovllm/llm.h"
#include "runner/draft_runner.h"

namespace nanovllm {
namespace {

constexpr int kNumAsked = test::full_or_reduced(32, 16);
constexpr int kNumKnown = 320;

// Prompts of up to three chunks of a state, which often begin alike, and outputs of more than one.
class MixedTexts {
 public:
  MixedTexts() {
    for (int i = 0; i < kNumAsked; ++i) {
      prompts.emplace_back(prompt());
      params.push_back(any_params(i));
    }
  }

  std::vector<Prompt> prompts;
  std::vector<SamplingParams> params;

 private:
  int pick(int n) { return static_cast<int>(rng_() % static_cast<unsigned>(n)); }
  bool one_in(int n) { return pick(n) == 0; }

  std::vector<int32_t> prompt() {
    std::vector<int32_t> ids(1 + pick(180));
    const int common = pick(3) * 64;
    for (int p = 0; p < std::ssize(ids); ++p) ids[p] = p < common ? (7 * p) % 50 : pick(kNumKnown);
    return ids;
  }

  SamplingParams any_params(int number) {
    SamplingParams p;
    p.temperature = one_in(2) ? 0 : 0.5 + 0.5 * pick(3);
    if (p.temperature > 0 && one_in(4)) p.n = 2;
    if (!one_in(3)) p.seed = number / 2;
    p.max_tokens = 1 + pick(90);
    p.ignore_eos = true;
    if (one_in(3)) p.min_tokens = pick(p.max_tokens + 1);
    if (one_in(3)) p.top_p = 0.8;
    if (one_in(4)) p.top_k = 1 + pick(40);
    if (one_in(4)) p.repetition_penalty = 0.9 + 0.1 * pick(6);
    if (one_in(4)) p.stop_token_ids = {pick(kNumKnown), pick(kNumKnown)};
    if (one_in(3)) p.logprobs = pick(6);
    if (one_in(8)) p.prompt_logprobs = pick(3);
    return p;
  }

  std::mt19937 rng_{9};
};

struct HybridShape {
  std::string name;
  int max_num_batched_tokens = 512;
  int num_blocks = 1024;
  int64_t state_bytes = 64 << 20;
  bool enable_prefix_caching = true;
};

struct Drafted {
  std::vector<RequestOutput> outputs;  // of two rounds
  int num_draft_tokens = 0, num_accepted_tokens = 0, num_preemptions = 0;
};

// A model without recurrent layers, whose guesses are mostly wrong.
std::unique_ptr<Drafter> other_model(const EngineParts& parts) {
  const auto target = load_model_config(parts.model_dir),
             other = load_model_config(test::source_path("tests/goldens/qwen3_tied"));
  auto runner = make_draft_runner(other, target, parts.config, 0);
  const int num_blocks = parts.runner->num_kvcache_blocks();
  runner->allocate_kv_cache(num_blocks);
  return std::make_unique<ModelDrafter>(
      std::move(runner),
      ModelDrafterOptions{.max_num_batched_tokens = parts.config.max_num_batched_tokens,
                          .max_model_len = parts.config.max_model_len,
                          .vocab_size = kNumKnown,
                          .block_size = parts.config.kvcache_block_size,
                          .num_target_blocks = num_blocks});
}

Drafted generate(const std::string& checkpoint, const HybridShape& shape, DraftingParts drafting,
                 bool with_model = false) {
  static const MixedTexts texts;
  const std::string path = test::source_path("tests/goldens/" + checkpoint);
  EngineConfig config;
  config.device = "cpu";
  config.num_threads = 2;
  config.max_model_len = 288;
  config.kvcache_block_size = 16;
  config.num_kvcache_blocks = shape.num_blocks;
  config.max_num_batched_tokens = shape.max_num_batched_tokens;
  config.state_cache_memory = shape.state_bytes;
  config.enable_prefix_caching = shape.enable_prefix_caching;
  EngineParts parts = test::parts_of(path, config);
  parts.drafting = std::move(drafting);
  if (with_model) parts.drafting.drafter = other_model(parts);
  LLM llm = test::llm_of(std::move(parts));
  Drafted all;
  for (int round = 0; round < 2; ++round) {
    auto outputs = llm.generate(texts.prompts, texts.params, [&](const auto&, const StepStats& s) {
      all.num_draft_tokens += s.num_draft_tokens;
      all.num_accepted_tokens += s.num_accepted_tokens();
      all.num_preemptions += s.num_preemptions;
      return true;
    });
    std::ranges::move(outputs, std::back_inserter(all.outputs));
  }
  return all;
}

class LlmHybridDrafts : public ::testing::TestWithParam<std::string> {};

TEST_P(LlmHybridDrafts, EveryDrafterGivesWhatNoneGives) {
  const std::vector<HybridShape> shapes = {{.name = "usual"},
                                           {.name = "chunks", .max_num_batched_tokens = 37},
                                           {.name = "preemption", .num_blocks = 40},
                                           {.name = "few states", .state_bytes = 1 << 19},
                                           {.name = "uncached", .enable_prefix_caching = false}};
  const auto expected = generate(GetParam(), shapes[0], {}).outputs;
  std::vector<int32_t> ids(kNumKnown);
  std::iota(ids.begin(), ids.end(), 0);
  for (const HybridShape& shape : shapes) {
    SCOPED_TRACE(shape.name);
    const auto expect_same = [&](const char* drafter, DraftingParts parts,
                                 bool with_model = false) {
      SCOPED_TRACE(drafter);
      Drafted got = generate(GetParam(), shape, std::move(parts), with_model);
      test::expect_equal(got.outputs, expected);
      EXPECT_EQ(got.num_preemptions > 0, shape.num_blocks < 100);
      return got;
    };
    const Drafted random =
        expect_same("random", test::all_of(std::make_unique<test::RandomDrafter>(ids)));
    EXPECT_GT(random.num_draft_tokens, 10 * kNumAsked);
    const Drafted prophet =
        expect_same("prophet", test::all_of(std::make_unique<test::Prophet>(expected)));
    EXPECT_EQ(prophet.num_accepted_tokens, prophet.num_draft_tokens);
    EXPECT_GT(prophet.num_accepted_tokens, 10 * kNumAsked);
    const Drafted suffix = expect_same(
        "suffix", test::all_of(R"({"method": "suffix", "suffix_decoding_max_spec_factor": 4})"));
    EXPECT_GT(suffix.num_accepted_tokens, kNumAsked);
    EXPECT_GT(suffix.num_draft_tokens, suffix.num_accepted_tokens);
    DraftingParts of_model;
    of_model.most_tokens = [](int) { return 5; };
    EXPECT_GT(expect_same("model", std::move(of_model), true).num_draft_tokens, kNumAsked);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Goldens, LlmHybridDrafts,
    ::testing::ValuesIn(test::full_or_reduced(std::vector<std::string>{"qwen3_5", "qwen3_5_moe",
                                                                       "qwen3_next", "olmo_hybrid"},
                                              {"qwen3_5", "olmo_hybrid"})),
    [](const auto& one) { return one.param; });

}  // namespace
}  // namespace nanovllm
