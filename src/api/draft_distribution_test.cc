// That tokens behind drafts are drawn from the distribution that the reference computes, whoever
// guesses, and that a rule that takes what was not drawn would be noticed.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "api/drafts_testing.h"
#include "base/testing.h"
#include "nanovllm/llm.h"
#include "ops/reference_sampling.h"

namespace nanovllm {
namespace {

using Ids = std::vector<int32_t>;

// Of five tokens the first one comes with the prompt: four draws each, 100,000 in all.
constexpr int kNumTexts = test::full_or_reduced(25'000, 5'000);
constexpr int kTextsOfRequest = 1'000;
constexpr int kTokensOfText = 5;
constexpr int kNumDraws = kNumTexts * (kTokensOfText - 1);

Ids drawn_behind() { return {7, 21, 7, 150, 33, 90, 12}; }
// Those that are drawn, in this order: few, so that each text comes many times.
Ids drawn_ids() { return {40, 41, 42}; }

SamplingParams drawn(int64_t seed) {
  SamplingParams params;
  params.n = kTextsOfRequest;
  params.seed = seed;
  params.max_tokens = kTokensOfText;
  params.ignore_eos = true;
  params.allowed_token_ids = drawn_ids();
  params.logit_bias = {{40, -0.8F}, {42, 0.4F}};
  params.temperature = 2;
  params.top_p = 0.99;
  params.min_p = 0.01;
  params.presence_penalty = 1.5;
  params.frequency_penalty = 0.8;
  return params;
}

EngineParts parts() {
  EngineConfig config;
  config.device = "cpu";
  config.dtype = "float32";
  config.num_threads = 2;
  config.max_model_len = 32;
  config.kvcache_block_size = 16;
  config.num_kvcache_blocks = 512;
  config.max_num_batched_tokens = 2048;
  config.max_num_seqs = 256;
  return test::parts_of(test::source_path("tests/goldens/qwen3_tied"), config);
}

struct Drawn {
  std::map<Ids, int> texts = {};  // how often each came
  int64_t num_draft_tokens = 0, num_accepted_tokens = 0;
};

Drawn draw(EngineParts parts) {
  LLM llm = test::llm_of(std::move(parts));
  Drawn all;
  const auto count = [&](const auto& /*changed*/, const StepStats& step) {
    all.num_draft_tokens += step.num_draft_tokens;
    all.num_accepted_tokens += step.num_accepted_tokens();
    return true;
  };
  for (int64_t seed = 0; seed < kNumTexts; seed += kTextsOfRequest) {
    const std::vector<SamplingParams> params = {drawn(seed)};
    const auto outputs = llm.generate({drawn_behind()}, params, count);
    for (const CompletionOutput& text : outputs[0].outputs) ++all.texts[text.token_ids];
  }
  return all;
}

// The model's log-probability of each of drawn_ids() behind these ids.
std::vector<float> logits_behind(LLM& llm, const Ids& ids) {
  SamplingParams params;
  params.max_tokens = 1;
  params.prompt_logprobs = 0;
  std::vector<Prompt> prompts;
  for (const int32_t id : drawn_ids()) {
    Ids with = ids;
    with.push_back(id);
    prompts.emplace_back(with);
  }
  std::vector<float> logits;
  for (const RequestOutput& output : llm.generate(prompts, params)) {
    logits.push_back(output.prompt_logprobs.back()->front().logprob);
  }
  return logits;
}

// How probable each text is. The reference knows drawn_ids() as 0, 1 and 2.
void add_expected(LLM& llm, const Ids& text, double probability, std::map<Ids, double>& expected) {
  if (text.size() == kTokensOfText) {
    expected[text] = probability;
    return;
  }
  Ids ids = drawn_behind(), numbers;
  ids.insert(ids.end(), text.begin(), text.end());
  for (const int32_t id : text) numbers.push_back(id - drawn_ids().front());
  const SamplingParams params = drawn(0);
  const std::vector<std::pair<int32_t, float>> bias = {{0, -0.8F}, {2, 0.4F}};
  const SamplingRow row = {.temperature = static_cast<float>(params.temperature),
                           .top_p = static_cast<float>(params.top_p),
                           .min_p = static_cast<float>(params.min_p),
                           .presence_penalty = static_cast<float>(params.presence_penalty),
                           .frequency_penalty = static_cast<float>(params.frequency_penalty),
                           .output_ids = numbers,
                           .logit_bias = bias};
  const std::vector<double> next = reference_probabilities(row, logits_behind(llm, ids));
  for (size_t i = 0; i < next.size(); ++i) {
    if (next[i] == 0) continue;
    Ids longer = text;
    longer.push_back(drawn_ids()[i]);
    add_expected(llm, longer, probability * next[i], expected);
  }
}

const std::map<Ids, double>& expected_texts() {
  static const std::map<Ids, double> expected = [] {
    LLM llm = test::llm_of(parts());
    std::map<Ids, double> all;
    add_expected(llm, {}, 1, all);
    return all;
  }();
  return expected;
}

// Pearson's test: the probability that right draws are farther from what is expected. By Wilson
// and Hilferty's normal approximation; texts expected less than 5 times are taken together.
double p_value(const std::map<Ids, int>& texts) {
  double statistic = 0, rare_expected = 0, rare_seen = 0;
  int num_cells = 0;
  const auto add = [&](double seen, double expected) {
    statistic += (seen - expected) * (seen - expected) / expected;
    ++num_cells;
  };
  for (const auto& [text, seen] : texts) {
    if (!expected_texts().contains(text)) return 0;
  }
  for (const auto& [text, probability] : expected_texts()) {
    const double expected = probability * kNumTexts;
    const auto found = texts.find(text);
    const double seen = found == texts.end() ? 0 : found->second;
    if (expected < 5) {
      rare_expected += expected;
      rare_seen += seen;
    } else {
      add(seen, expected);
    }
  }
  if (rare_expected > 0) add(rare_seen, rare_expected);
  const double freedom = num_cells - 1;
  const double width = 2 / (9 * freedom);
  const double deviation = (std::cbrt(statistic / freedom) - (1 - width)) / std::sqrt(width);
  return std::erfc(deviation / std::sqrt(2)) / 2;
}

double p_value_with(DraftingParts drafting) {
  EngineParts with = parts();
  with.drafting = std::move(drafting);
  const Drawn all = draw(std::move(with));
  EXPECT_GT(all.num_accepted_tokens, kNumDraws / 20);
  EXPECT_GT(all.num_draft_tokens - all.num_accepted_tokens, kNumDraws / 20);
  return p_value(all.texts);
}

TEST(DraftDistribution, WhoeverGuessesItIsTheReferences) {
  EXPECT_GT(expected_texts().size(), 100U);
  EXPECT_GT(p_value(draw(parts()).texts), 0.001);
  EXPECT_GT(p_value_with(test::all_of(
                R"({"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_max": 1})")),
            0.001);
  EXPECT_GT(p_value_with(test::all_of(R"({"method": "suffix"})")), 0.001);
  EXPECT_GT(p_value_with(test::all_of(std::make_unique<test::RandomDrafter>(drawn_ids()))), 0.001);
}

// Takes a first draft that was not drawn once in so many times.
class LenientRunner final : public Runner {
 public:
  LenientRunner(std::unique_ptr<Runner> runner, int once_in)
      : runner_(std::move(runner)), once_in_(once_in) {}
  int num_kvcache_blocks() const override { return runner_->num_kvcache_blocks(); }
  std::span<const int> kv_windows() const override { return runner_->kv_windows(); }

  void submit(const StepInput& input) override {
    first_drafts_.clear();
    for (const SequenceInput& sequence : input.sequences) {
      const auto& drafts = sequence.draft_token_ids;
      first_drafts_.push_back(drafts.empty() ? -1 : drafts.front());
    }
    runner_->submit(input);
  }
  void draw(std::span<const SamplingRow> rows) override { runner_->draw(rows); }
  StepOutput collect() override {
    StepOutput output = runner_->collect();
    for (size_t i = 0; i < first_drafts_.size(); ++i) {
      auto& sampled = output.sequences[i].sampled;
      if (first_drafts_[i] < 0 || sampled.front().token_id == first_drafts_[i]) continue;
      if (++num_wrong_ % once_in_ != 0) continue;
      output.results[&sampled.front() - output.results.data()].token_id = first_drafts_[i];
    }
    return output;
  }
  void abandon() noexcept override { runner_->abandon(); }

 private:
  const std::unique_ptr<Runner> runner_;
  const int once_in_;
  Ids first_drafts_;  // of the step's sequences; -1 = none
  int num_wrong_ = 0;
};

TEST(DraftDistribution, ARuleThatTakesFewDraftsTooManyIsNoticed) {
  EngineParts lenient = parts();
  lenient.runner = std::make_unique<LenientRunner>(std::move(lenient.runner), 10);
  lenient.drafting = test::all_of(R"({"method": "suffix"})");
  EXPECT_LT(p_value(draw(std::move(lenient)).texts), 1e-6);
}

}  // namespace
}  // namespace nanovllm
