#include "engine/thinking_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "engine/engine_test_support.h"

namespace nanovllm {
namespace {

constexpr int32_t kStart = 7;
const Ids kEnd = {8, 9};

ThinkingTags tags(int num_prompt_tokens = -1, Ids start = {kStart}, Ids end = kEnd) {
  return {std::move(start), std::move(end), num_prompt_tokens};
}

// What the ids of an output are where the model says these, and budgets force others in their
// place; -1 ends it.
Ids forced(ThinkingBudget budget, const Ids& said) {
  Ids output;
  for (const int32_t id : said) {
    const int32_t forced = budget.forced_id();
    EXPECT_EQ(forced >= 0, budget.num_free() <= 0);
    output.push_back(forced >= 0 ? forced : id);
    budget.append(output.back());
  }
  return output;
}

TEST(ThinkingBudget, EndsAThoughtThatThePromptOpened) {
  const ThinkingTags open = tags(0);
  EXPECT_EQ(forced(ThinkingBudget(open, 3), {1, 2, 3, 4, 5, 6}), (Ids{1, 2, 3, 8, 9, 6}));
  EXPECT_EQ(forced(ThinkingBudget(open, 0), {1, 2, 3}), (Ids{8, 9, 3}));
  const ThinkingTags begun = tags(2);  // tokens of the prompt count
  EXPECT_EQ(forced(ThinkingBudget(begun, 3), {1, 2, 3, 4}), (Ids{1, 8, 9, 4}));
  EXPECT_EQ(forced(ThinkingBudget(begun, 1), {1, 2, 3}), (Ids{8, 9, 3}));
}

TEST(ThinkingBudget, EndsAThoughtThatTheOutputOpens) {
  const ThinkingTags closed = tags();
  EXPECT_EQ(forced(ThinkingBudget(closed, 2), {1, kStart, 2, 3, 4, 5, 6}),
            (Ids{1, kStart, 2, 3, 8, 9, 6}));
  EXPECT_EQ(forced(ThinkingBudget(closed, 0), {kStart, 1, 2, 3}), (Ids{kStart, 8, 9, 3}));
  EXPECT_EQ(forced(ThinkingBudget(closed, 1), {1, 2, 3, 4}), (Ids{1, 2, 3, 4}));
}

TEST(ThinkingBudget, LeavesAThoughtAloneThatEndsBefore) {
  const ThinkingTags open = tags(0), closed = tags();
  EXPECT_EQ(forced(ThinkingBudget(open, 4), {1, 2, 8, 9, 3, 4, 5}), (Ids{1, 2, 8, 9, 3, 4, 5}));
  // Later tags are text.
  EXPECT_EQ(forced(ThinkingBudget(open, 3), {1, 8, 9, kStart, 1, 2, 3, 4, 5}),
            (Ids{1, 8, 9, kStart, 1, 2, 3, 4, 5}));
}

TEST(ThinkingBudget, IsNotOverWhereSomethingElseEnds) {
  const ThinkingTags closed = tags();
  EXPECT_EQ(forced(ThinkingBudget(closed, 1), {8, 9, kStart, 1, 2, 3, 4}),
            (Ids{8, 9, kStart, 1, 8, 9, 4}));
}

TEST(ThinkingBudget, DoesNotCountAStartTagThatRepeatsWhatIsOpen) {
  const ThinkingTags open = tags(0), begun = tags(2), pair = tags(0, {6, kStart});
  EXPECT_EQ(forced(ThinkingBudget(open, 2), {kStart, 1, 2, 3, 4}), (Ids{kStart, 1, 2, 8, 9}));
  EXPECT_EQ(forced(ThinkingBudget(begun, 3), {kStart, 1, 2, 3, 4}), (Ids{kStart, 1, 8, 9, 4}));
  EXPECT_EQ(forced(ThinkingBudget(pair, 2), {6, kStart, 1, 2, 3, 4}), (Ids{6, kStart, 1, 2, 8, 9}));
  EXPECT_EQ(forced(ThinkingBudget(open, 0), {kStart, 1, 2}), (Ids{8, 9, 2}));
  // Later ones are text of the thought.
  EXPECT_EQ(forced(ThinkingBudget(open, 2), {1, kStart, 2, 3}), (Ids{1, kStart, 8, 9}));
  EXPECT_EQ(forced(ThinkingBudget(open, 2), {kStart, kStart, 2, 3, 4}),
            (Ids{kStart, kStart, 2, 8, 9}));
}

TEST(ThinkingBudget, GoesOnWithAnEndThatTheModelHasBegun) {
  const ThinkingTags open = tags(0), repeating = tags(0, {kStart}, {8, 8, 9});
  EXPECT_EQ(forced(ThinkingBudget(open, 3), {1, 2, 8, 4, 5}), (Ids{1, 2, 8, 9, 5}));
  EXPECT_EQ(forced(ThinkingBudget(open, 3), {1, 8, 2, 4, 5}), (Ids{1, 8, 2, 8, 9}));
  EXPECT_EQ(forced(ThinkingBudget(repeating, 3), {8, 8, 8, 1, 1}), (Ids{8, 8, 8, 9, 1}));
}

TEST(ThinkingBudget, FindsWhatIsOpenInAPrompt) {
  const ThinkingTags t = tags(), pair = tags(-1, {1, 2});
  EXPECT_EQ(num_open_thinking_tokens(Ids{}, t), -1);
  EXPECT_EQ(num_open_thinking_tokens(Ids{1, 2, 3}, t), -1);
  EXPECT_EQ(num_open_thinking_tokens(Ids{1, kStart}, t), 0);
  EXPECT_EQ(num_open_thinking_tokens(Ids{1, kStart, 2, 3}, t), 2);
  EXPECT_EQ(num_open_thinking_tokens(Ids{kStart, 2, 8, 9}, t), -1);
  EXPECT_EQ(num_open_thinking_tokens(Ids{kStart, 2, 8, 9, kStart, 5}, t), 1);
  EXPECT_EQ(num_open_thinking_tokens(Ids{1, 1, 2, 5}, pair), 1);
  EXPECT_EQ(num_open_thinking_tokens(Ids{1, 3, 2, 5}, pair), -1);
}

// Whatever comes next, so many tokens are free; and with the worst that may come, no more.
TEST(ThinkingBudget, SaysHowManyTokensAreFreeForSure) {
  const auto least = [](const ThinkingBudget& budget, const auto& self, int depth) -> int {
    if (budget.forced_id() >= 0) return 0;
    if (depth == 0) return 1;
    int least_of_all = 1000;
    for (const int32_t id : {1, int{kStart}, 8, 9}) {
      ThinkingBudget next = budget;
      next.append(id);
      least_of_all = std::min(least_of_all, 1 + self(next, self, depth - 1));
    }
    return least_of_all;
  };
  for (const Ids& start : {Ids{kStart}, Ids{1, kStart}}) {
    for (int in_prompt = -1; in_prompt < 3; ++in_prompt) {
      for (int budget = 0; budget < 4; ++budget) {
        const ThinkingTags t = tags(in_prompt, start);
        const ThinkingBudget thinking(t, budget);
        EXPECT_EQ(std::max<int64_t>(0, thinking.num_free()), least(thinking, least, 6))
            << in_prompt << ' ' << budget;
      }
    }
  }
}

SamplingParams with_budget(SamplingParams params, int budget, ThinkingTags t) {
  params.thinking_token_budget = budget;
  params.thinking_tags = std::move(t);
  return params;
}

// What the fake model says, greedily, where a budget may force it.
Ids expected_tokens(const Ids& prompt, int count, ThinkingBudget budget) {
  Ids ids = prompt;
  for (int i = 0; i < count; ++i) {
    const int32_t forced = budget.forced_id();
    ids.push_back(forced >= 0 ? forced : greedy_tokens(ids, 1)[0]);
    budget.append(ids.back());
  }
  return {ids.begin() + std::ssize(prompt), ids.end()};
}

class ThinkingEngine : public ::testing::TestWithParam<int> {
 protected:
  FakeEngine make(FakeEngineOptions options = {}) {
    options.pipeline_depth = GetParam();
    return make_fake_engine(options);
  }
};
INSTANTIATE_TEST_SUITE_P(PipelineDepth, ThinkingEngine, ::testing::Values(0, 1));

TEST_P(ThinkingEngine, AThoughtEndsAfterItsBudget) {
  for (int in_prompt = -1; in_prompt < 3; ++in_prompt) {
    for (int budget = -1; budget < 12; ++budget) {
      // The output's third token opens a thought where the prompt does not. None is of the end tag.
      const Ids said = greedy_tokens(prompt_of(9), 20);
      Ids unsaid;
      for (int32_t id = 1; unsaid.size() < 2; ++id) {
        if (std::ranges::count(said, id) == 0) unsaid.push_back(id);
      }
      const ThinkingTags t = tags(in_prompt, {said[2]}, unsaid);
      FakeEngine engine = make();
      const SamplingParams params = with_budget(greedy(20), budget, t);
      const Ids output = run_one(*engine.core, prompt_of(9), params).outputs[0].token_ids;
      if (budget < 0) {
        EXPECT_EQ(output, said);
        continue;
      }
      EXPECT_EQ(output, expected_tokens(prompt_of(9), 20, ThinkingBudget(t, budget)))
          << in_prompt << ' ' << budget;
      const size_t end = in_prompt < 0 ? 3 + budget : std::max(0, budget - in_prompt);
      EXPECT_TRUE(std::ranges::equal(std::span(output).first(end), std::span(said).first(end)));
      EXPECT_EQ((Ids{output[end], output[end + 1]}), unsaid) << in_prompt << ' ' << budget;
    }
  }
}

// At every token, as a request that comes back to life does.
TEST_P(ThinkingEngine, ARequestThatGoesOnEndsItsThoughtWhereItWouldHave) {
  const SamplingParams params = with_budget(random(20, 3), 6, tags(1));
  FakeEngine first = make();
  const Ids whole = run_one(*first.core, prompt_of(9), params).outputs[0].token_ids;
  ASSERT_EQ((Ids{whole[5], whole[6]}), kEnd);
  for (size_t given = 0; given < whole.size(); ++given) {
    FakeEngine engine = make();
    const Ids before(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(given));
    const uint64_t id = engine.core->add_request(prompt_of(9), params, {before});
    EXPECT_EQ(run(*engine.core).at(id).outputs[0].token_ids, whole) << given;
  }
}

TEST_P(ThinkingEngine, AForcedTokenHasItsOwnLogProbability) {
  SamplingParams params = with_budget(greedy(4), 1, tags(0));
  params.logprobs = 0;
  FakeEngine engine = make();
  const CompletionOutput output = run_one(*engine.core, prompt_of(9), params).outputs[0];
  ASSERT_EQ(output.logprobs.size(), 4U);
  Ids ids = prompt_of(9);
  ids.push_back(output.token_ids[0]);
  EXPECT_EQ(output.logprobs[1].front().token_id, kEnd[0]);
  EXPECT_EQ(output.logprobs[1].front().logprob, FakeModel::logprob(FakeModel::fold(ids), kEnd[0]));
}

// Stop tokens are banned before min_tokens, and bad words always; a forced one is neither.
TEST_P(ThinkingEngine, NothingElseForbidsAForcedToken) {
  SamplingParams params = with_budget(greedy(12), 3, tags(0));
  params.min_tokens = 8;
  params.stop_token_ids = kEnd;
  params.logit_bias = {{kEnd[0], -100}};
  FakeEngine engine = make();
  const Ids output = run_one(*engine.core, prompt_of(9), params).outputs[0].token_ids;
  EXPECT_EQ((Ids{output[3], output[4]}), kEnd);
  params.min_tokens = 0;
  FakeEngine stopping = make();
  const CompletionOutput stopped = run_one(*stopping.core, prompt_of(9), params).outputs[0];
  EXPECT_EQ(stopped.token_ids.back(), kEnd[0]);
  EXPECT_EQ(stopped.finish_reason, FinishReason::kStop);
}

TEST(ThinkingEngine, OnlyTheEndOfAThoughtLetsADrawWaitForTheStepBefore) {
  const auto is_drawn_ahead = [](const SamplingParams& params) {
    FakeEngine engine = make_fake_engine({.pipeline_depth = 1});
    engine.core->add_request(prompt_of(9), params);
    engine.core->step();
    EXPECT_EQ(engine.runner->num_steps, 2);  // it runs ahead all the same
    return engine.runner->num_drawn_ahead == 1;
  };
  EXPECT_TRUE(is_drawn_ahead(greedy(20)));
  EXPECT_TRUE(is_drawn_ahead(with_budget(greedy(20), 10, tags(0))));
  EXPECT_TRUE(is_drawn_ahead(with_budget(greedy(20), 10, tags())));
  EXPECT_TRUE(is_drawn_ahead(with_budget(greedy(20), 2, tags(0))));
  // The second may be the end's.
  EXPECT_FALSE(is_drawn_ahead(with_budget(greedy(20), 1, tags(0))));
  EXPECT_FALSE(is_drawn_ahead(with_budget(greedy(20), 0, tags())));
}

}  // namespace
}  // namespace nanovllm
