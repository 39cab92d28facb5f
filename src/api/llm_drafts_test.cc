// Drafts change no token, through the whole engine: 200 requests that ask for everything get the
// same from every drafter, whether it copies, knows nothing or knows the future, as without one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "api/drafts_testing.h"
#include "api/outputs_testing.h"
#include "base/testing.h"
#include "engine/draft_model.h"
#include "engine/grammar_drafter.h"
#include "nanovllm/llm.h"
#include "nanovllm/tokenizer.h"

namespace nanovllm {
namespace {

using Outputs = std::vector<RequestOutput>;

constexpr int kNumRequests = test::full_or_reduced(200, 60);
constexpr int kVocabSize = 4099;

std::string demo() { return test::source_path("models/demo"); }

const Tokenizer& demo_tokenizer() {
  static const auto tokenizer = Tokenizer::load(demo());
  return *tokenizer;
}

std::vector<int32_t> demo_ids() {
  std::vector<int32_t> ids(kVocabSize);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

class MixedRequests {
 public:
  MixedRequests() {
    for (int i = 0; i < kNumRequests; ++i) {
      prompts.emplace_back(prompt());
      params.push_back(any_params(i));
      add_rule(params.back(), i % 8);
    }
  }

  std::vector<Prompt> prompts;
  std::vector<SamplingParams> params;

 private:
  int pick(int n) { return static_cast<int>(rng_() % static_cast<unsigned>(n)); }
  bool one_in(int n) { return pick(n) == 0; }

  // Stories that begin alike, of a few sentences that come again.
  std::string prompt() {
    const std::string sentences[] = {
        "Once upon a time there was a little dog.", " Lily liked to play in the park with her mom.",
        " The dog was very happy.", " \"Hello!\" said the bird.", " Tim had a big red ball."};
    std::string text = sentences[0];
    for (int i = pick(7); i > 0; --i) text += sentences[pick(5)];
    return one_in(3) ? text.substr(0, 1 + pick(static_cast<int>(text.size()) - 1)) : text;
  }

  SamplingParams any_params(int number) {
    SamplingParams p;
    p.temperature = one_in(2) ? 0 : 0.3 + 0.1 * pick(12);
    if (p.temperature > 0 && one_in(4)) p.n = 2 + pick(2);
    if (!one_in(3)) p.seed = number / 2;
    p.max_tokens = 1 + pick(30);
    if (one_in(3)) p.min_tokens = pick(p.max_tokens + 1);
    p.ignore_eos = one_in(2);
    if (one_in(3)) p.top_p = 0.8;
    if (one_in(4)) p.top_k = 1 + pick(40);
    if (one_in(4)) p.min_p = 0.02 * pick(10);
    if (one_in(4)) p.presence_penalty = 0.5 * (pick(7) - 3);
    if (one_in(4)) p.frequency_penalty = 0.5 * (pick(7) - 3);
    if (one_in(4)) p.repetition_penalty = 0.9 + 0.1 * pick(6);
    if (one_in(4)) p.logit_bias = {{pick(kVocabSize), -100}, {260 + pick(100), 3}};
    if (one_in(4)) p.stop = {" and", "dog", one_in(2) ? "." : "he "};
    p.include_stop_str_in_output = one_in(2);
    if (one_in(4)) p.stop_token_ids = {260 + pick(200), 300 + pick(200)};
    if (one_in(4)) p.bad_words = {"dog", "the", "was very", "little girl"};
    if (one_in(3)) p.logprobs = pick(6);
    if (one_in(8)) p.prompt_logprobs = pick(3);
    if (one_in(6)) p.cache_salt = one_in(2) ? "one" : "two";
    p.skip_special_tokens = one_in(2);
    p.priority = pick(3) - 1;
    p.output_kind = static_cast<RequestOutputKind>(pick(3));
    return p;
  }

  void add_rule(SamplingParams& p, int kind) {
    const auto structured = [&]() -> StructuredOutputsParams& {
      p.max_tokens += 20;
      return p.structured_outputs.emplace();
    };
    switch (kind) {
      case 0:
        structured().regex = "(The|A) (cat|dog|bird)( [a-z]{1,8}){2,5}\\.";
        break;
      case 1: {
        StructuredOutputsParams& rule = structured();
        rule.json = R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 9},
            "likes": {"type": "array", "items": {"enum": ["cats", "dogs"]}, "maxItems": 3}},
          "required": ["name", "likes"], "additionalProperties": false})";
        rule.disable_any_whitespace = one_in(2);
        break;
      }
      case 2:
        structured().choice = {"yes, the dog is happy", "no", "yes"};
        break;
      case 3:
        structured().grammar = R"(root ::= "[" [a-z]+ ("," [a-z]+)* "]")";
        break;
      case 4:
        p.thinking_token_budget = pick(12);
        p.thinking_tags = ThinkingTags{demo_tokenizer().encode(" The"),
                                       demo_tokenizer().encode(". The end."), pick(3) - 1};
        break;
      case 5: {
        std::vector<int32_t>& allowed = p.allowed_token_ids.emplace();
        for (int32_t id = pick(3); id < kVocabSize; id += 3) allowed.push_back(id);
        break;
      }
      default:
        break;
    }
  }

  std::mt19937 rng_{55};
};

const MixedRequests& mixed() {
  static const MixedRequests requests;
  return requests;
}

struct EngineShape {
  std::string name;
  int max_num_batched_tokens = 512;
  int max_num_seqs = 256;
  int block_size = 16;
  int num_blocks = 2048;
  bool enable_prefix_caching = true;
  int num_rounds = 1;
  int num_ranks = 1;
};

struct Generated {
  Outputs outputs;  // of all rounds
  int64_t num_draft_tokens = 0, num_accepted_tokens = 0, num_steps = 0;
  int64_t num_preemptions = 0, num_cached_tokens = 0;
};

// The model itself with its weights in codes, which is right and wrong by turns.
std::unique_ptr<Drafter> model_in_codes(EngineParts& parts) {
  const auto speculative = parse_speculative_config(
      fmt::format(R"({{"method": "draft_model", "model": "{}", "quantization": "int4",)"
                  R"( "num_speculative_tokens": 5}})",
                  demo()));
  DraftModel model(*speculative, load_model_config(demo()), parts.tokenizer.get(), parts.config,
                   nullptr);
  model.load();
  return model.make_drafter(*parts.runner, parts.info);
}

LLM load_demo(const EngineShape& shape, DraftingParts drafting, bool with_model = false) {
  EngineConfig config;
  config.device = "cpu";
  config.num_threads = 2;
  config.max_model_len = 160;
  config.max_num_batched_tokens = shape.max_num_batched_tokens;
  config.max_num_seqs = shape.max_num_seqs;
  config.kvcache_block_size = shape.block_size;
  config.num_kvcache_blocks = shape.num_blocks;
  config.enable_prefix_caching = shape.enable_prefix_caching;
  config.scheduling_policy = "priority";
  config.tensor_parallel_size = shape.num_ranks;
  EngineParts parts = test::parts_of(demo(), config);
  parts.tokenizer = Tokenizer::load(demo());
  parts.drafting = std::move(drafting);
  if (with_model) parts.drafting.drafter = model_in_codes(parts);
  return test::llm_of(std::move(parts));
}

Generated generate(const EngineShape& shape, DraftingParts drafting, bool with_model = false) {
  LLM llm = load_demo(shape, std::move(drafting), with_model);
  Generated all;
  const auto count = [&](const auto& /*changed*/, const StepStats& step) {
    ++all.num_steps;
    all.num_draft_tokens += step.num_draft_tokens;
    all.num_accepted_tokens += step.num_accepted_tokens();
    all.num_preemptions += step.num_preemptions;
    return true;
  };
  for (int round = 0; round < shape.num_rounds; ++round) {
    for (RequestOutput& output : llm.generate(mixed().prompts, mixed().params, count)) {
      all.num_cached_tokens += output.num_cached_tokens;
      all.outputs.push_back(std::move(output));
    }
  }
  return all;
}

// Sums differ in rounding with the number of ranks.
const Outputs& without_drafts(int num_ranks) {
  static std::map<int, Outputs> known;
  Outputs& outputs = known[num_ranks];
  if (outputs.empty()) {
    outputs = generate({.name = "usual", .num_rounds = 2, .num_ranks = num_ranks}, {}).outputs;
  }
  return outputs;
}

class LlmDrafts : public ::testing::TestWithParam<EngineShape> {};

TEST_P(LlmDrafts, EveryDrafterGivesWhatNoneGives) {
  const EngineShape& shape = GetParam();
  const Outputs& both_rounds = without_drafts(shape.num_ranks);
  const Outputs expected(both_rounds.begin(),
                         both_rounds.begin() + shape.num_rounds * int64_t{kNumRequests});
  const auto expect_same = [&](const char* drafter, DraftingParts parts, bool with_model = false) {
    SCOPED_TRACE(drafter);
    const Generated got = generate(shape, std::move(parts), with_model);
    test::expect_equal(got.outputs, expected);
    EXPECT_EQ(got.num_preemptions > 0, shape.num_blocks < 100);
    EXPECT_EQ(got.num_cached_tokens > 0, shape.enable_prefix_caching);
    return got;
  };
  const Generated none = expect_same("none", {});
  const Generated ngram = expect_same(
      "ngram",
      test::all_of(R"({"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 2,)"
                   R"( "prompt_lookup_min": 1})"));
  const Generated suffix = expect_same(
      "suffix", test::all_of(R"({"method": "suffix", "suffix_decoding_max_spec_factor": 4})"));
  const Generated random =
      expect_same("random", test::all_of(std::make_unique<test::RandomDrafter>(demo_ids())));
  const Generated prophet =
      expect_same("prophet", test::all_of(std::make_unique<test::Prophet>(expected)));
  DraftingParts several = test::all_of(std::make_unique<test::RandomDrafter>(demo_ids()));
  several.others.push_back(std::make_unique<GrammarDrafter>(demo_tokenizer()));
  several.others.push_back(std::make_unique<test::Prophet>(expected));
  expect_same("several", std::move(several));
  DraftingParts beside_model;
  beside_model.most_tokens = [](int) { return 5; };
  beside_model.others.push_back(std::make_unique<GrammarDrafter>(demo_tokenizer()));
  const Generated model = expect_same("model", std::move(beside_model), true);
  // Each must have met what it is about.
  EXPECT_EQ(none.num_draft_tokens, 0);
  for (const Generated* copied : {&ngram, &suffix}) {
    EXPECT_GT(copied->num_accepted_tokens, kNumRequests / 2);
    EXPECT_GT(copied->num_draft_tokens - copied->num_accepted_tokens, kNumRequests);
  }
  EXPECT_GT(random.num_draft_tokens, kNumRequests);
  EXPECT_GT(model.num_accepted_tokens, kNumRequests);
  EXPECT_GT(model.num_draft_tokens - model.num_accepted_tokens, kNumRequests);
  EXPECT_GT(prophet.num_accepted_tokens, kNumRequests);
  EXPECT_EQ(prophet.num_accepted_tokens, prophet.num_draft_tokens);
  EXPECT_LT(prophet.num_steps, none.num_steps);
}

// In the tokens that the tokenizer has for it, most of which the model takes.
TEST(GrammarDrafts, ForcedTextComesInFewSteps) {
  SamplingParams params;
  params.temperature = 0;
  params.max_tokens = 60;
  params.structured_outputs.emplace().regex =
      "The (cat|dog) was very happy because she had found a big red ball in the park\\.";
  const EngineShape shape = {.name = "usual"};
  const std::vector<Prompt> prompts = {"Once upon a time there was a dog."};
  const auto plain = load_demo(shape, {}).generate(prompts, params);
  DraftingParts forced = test::all_of(std::make_unique<GrammarDrafter>(demo_tokenizer()));
  Generated counts;
  const auto drafted = load_demo(shape, std::move(forced))
                           .generate(prompts, params, [&](const auto&, const StepStats& step) {
                             ++counts.num_steps;
                             counts.num_accepted_tokens += step.num_accepted_tokens();
                             return true;
                           });
  test::expect_equal(drafted, plain);
  EXPECT_EQ(drafted[0].outputs[0].finish_reason, FinishReason::kStop);
  EXPECT_GT(counts.num_accepted_tokens, 12);
  EXPECT_LT(counts.num_steps, 6);
}

std::vector<EngineShape> shapes() {
  const std::vector<EngineShape> all = {
      {.name = "usual", .num_rounds = 2},
      {.name = "chunks", .max_num_batched_tokens = 19, .max_num_seqs = 7},
      {.name = "alone", .max_num_seqs = 1, .block_size = 32, .enable_prefix_caching = false},
      {.name = "preemption", .max_num_batched_tokens = 64, .num_blocks = 40},
      {.name = "ranks", .num_ranks = 2},
      {.name = "uncached", .block_size = 48, .num_blocks = 20, .enable_prefix_caching = false}};
  return test::full_or_reduced(all, {all[1], all[3]});
}

INSTANTIATE_TEST_SUITE_P(Shapes, LlmDrafts, ::testing::ValuesIn(shapes()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace nanovllm
