// What the engine makes of drafts, and of steps that give a sequence several tokens or none. That
// drafts never change a token is engine_property_test.cc's.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "engine/engine_test_support.h"
#include "engine/speculative_config.h"

namespace nanovllm {
namespace {

using namespace std::chrono_literals;

// Greedy continuations, of which the one of index `wrong` is another token.
auto greedy_drafts(int count, int wrong = -1) {
  return [=](const Sequence& sequence, int most) {
    Ids drafts = greedy_tokens(sequence.token_ids, std::min(count, most));
    if (wrong >= 0 && wrong < std::ssize(drafts)) drafts[wrong] = (drafts[wrong] + 1) % 50;
    return drafts;
  };
}

// Steps until the engine is finished; how many tokens each gave the only request.
std::vector<size_t> steps_of(EngineCore& core) {
  std::vector<size_t> counts;
  while (!core.is_finished()) {
    const auto outputs = core.step();
    counts.push_back(outputs.empty() ? 0 : outputs.at(0).outputs[0].token_ids.size());
    EXPECT_EQ(core.check_integrity(), "");
  }
  return counts;
}

SamplingParams in_deltas(SamplingParams params) {
  params.output_kind = RequestOutputKind::kDelta;
  return params;
}

class Drafts : public ::testing::TestWithParam<int> {
 protected:
  FakeEngine make(FakeEngineOptions options) const {
    options.pipeline_depth = GetParam();
    return make_fake_engine(options);
  }
};
INSTANTIATE_TEST_SUITE_P(PipelineDepth, Drafts, ::testing::Values(0, 1));

TEST_P(Drafts, AStepGivesThoseThatHoldAndOneTokenMore) {
  FakeEngine right = make({.drafter = greedy_drafts(3)});
  right.core->add_request(prompt_of(9), in_deltas(greedy(10)));
  EXPECT_EQ(steps_of(*right.core), (std::vector<size_t>{1, 4, 4, 1}));
  FakeEngine wrong = make({.drafter = greedy_drafts(3, 1)});
  wrong.core->add_request(prompt_of(9), in_deltas(greedy(7)));
  EXPECT_EQ(steps_of(*wrong.core), (std::vector<size_t>{1, 2, 2, 2}));
}

TEST_P(Drafts, NoStepRunsAheadOfOneThatMayGiveSeveralTokens) {
  FakeEngine engine = make({.drafter = greedy_drafts(3, 2)});
  engine.core->add_request(prompt_of(9), greedy(40));
  for (int i = 1; !engine.core->is_finished(); ++i) {
    engine.core->step();
    EXPECT_EQ(engine.runner->num_steps, i);
  }
}

TEST_P(Drafts, TheyCountAsTokensOfADecode) {
  FakeEngine engine = make({.drafter = greedy_drafts(3)});
  engine.core->add_request(prompt_of(9), greedy(10));
  engine.core->step();
  engine.core->step();
  EXPECT_EQ(engine.core->last_step().num_prefill_tokens, 0);
  EXPECT_EQ(engine.core->last_step().num_decode_tokens, 4);
  EXPECT_EQ(engine.core->last_schedule().at(0).num_new_tokens, 4);
}

TEST_P(Drafts, StepsTellWhatBecameOfThem) {
  FakeEngine engine = make({.drafter = greedy_drafts(3, 1)});
  engine.core->add_request(prompt_of(9), greedy(7));
  StepStats total;
  while (!engine.core->is_finished()) {
    engine.core->step();
    const StepStats& step = engine.core->last_step();
    total.num_drafts += step.num_drafts;
    total.num_draft_tokens += step.num_draft_tokens;
    EXPECT_EQ(step.num_accepted_tokens(), step.num_drafts);
    if (step.num_drafts > 0) {
      EXPECT_EQ(step.num_accepted_per_pos, std::vector<int>{1});
      EXPECT_EQ(step.num_kept_decode_tokens(), 2);
    }
  }
  EXPECT_EQ(total.num_drafts, 3);
  EXPECT_EQ(total.num_draft_tokens, 3 + 3 + 1);
}

// In models with recurrent layers no draft opens a chunk: what a state takes in is there for good.
TEST_P(Drafts, AVerificationEndsWithItsChunk) {
  FakeEngine engine =
      make({.states = {.num_slots = 4, .num_logs = 2, .chunk = 8}, .drafter = greedy_drafts(20)});
  engine.core->add_request(prompt_of(9), in_deltas(greedy(24)));
  // From token 10 to 16, 24 and 32.
  EXPECT_EQ(steps_of(*engine.core), (std::vector<size_t>{1, 7, 8, 8}));
}

TEST_P(Drafts, AVerificationIsShortWhereLayersAreRecurrent) {
  FakeEngine engine =
      make({.states = {.num_slots = 4, .num_logs = 2, .chunk = 64}, .drafter = greedy_drafts(32)});
  engine.core->add_request(prompt_of(9), in_deltas(greedy(34)));
  EXPECT_EQ(steps_of(*engine.core), (std::vector<size_t>{1, kMaxDraftRows, kMaxDraftRows, 1}));
}

TEST_P(Drafts, APromptThatTookLongKeepsNobodyFromThem) {
  FakeEngine engine = make({.drafter = greedy_drafts(3), .draft_planner = DraftPlanner()});
  engine.core->add_request(prompt_of(9), greedy(60));
  engine.runner->time_per_token = 5ms;
  engine.core->step();
  engine.runner->time_per_token = 0ms;
  engine.runner->step_time = 1ms;
  int num_accepted = 0;
  while (!engine.core->is_finished()) {
    engine.core->step();
    num_accepted += engine.core->last_step().num_accepted_tokens();
  }
  EXPECT_GT(num_accepted, 20);
}

TEST_P(Drafts, ASequenceTakesTheDraftOfWhichMostIsExpected) {
  // The longer one, where nothing is known of either.
  FakeEngine unlearned = make({.drafter = greedy_drafts(2), .other_drafters = {greedy_drafts(3)}});
  unlearned.core->add_request(prompt_of(9), in_deltas(greedy(9)));
  EXPECT_EQ(steps_of(*unlearned.core), (std::vector<size_t>{1, 4, 4}));
  // Those whose were right, also where they are shorter.
  DraftPlanner planner;
  for (int i = 0; i < 100; ++i) {
    planner.learn({{1, 2, 3, 4, 5, 6}, 0, 0}, Ids{1, 9});
    planner.learn({{1, 2}, 0, 2}, Ids{1, 2});
    planner.learn_step(1, 1);
    planner.learn_step(2, 1);
    planner.learn_step(8, 1);
  }
  FakeEngine engine = make({.drafter = greedy_drafts(6, 1),
                            .other_drafters = {greedy_drafts(0), greedy_drafts(2)},
                            .draft_planner = planner});
  engine.runner->step_time = 1ms;
  engine.core->add_request(prompt_of(9), in_deltas(greedy(7)));
  EXPECT_EQ(steps_of(*engine.core), (std::vector<size_t>{1, 3, 3}));
}

// As benchmarks have it.
TEST_P(Drafts, DictatedTextsAreDrawnWhateverTheModelSays) {
  const Ids dictated = {3, 1, 4, 1, 5, 9, 2, 6};
  FakeEngineOptions options{.dictated = {{prompt_of(9), dictated}}};
  const auto ids_of = [&](const Ids& prompt) {
    SamplingParams params = greedy(10);
    params.logprobs = 0;
    const RequestOutput output = run_one(*make(options).core, prompt, params);
    EXPECT_EQ(output.outputs[0].logprobs.size(), 10U);
    return output.outputs[0].token_ids;
  };
  Ids expected = prompt_of(9);
  expected.insert(expected.end(), dictated.begin(), dictated.end());
  const Ids rest = greedy_tokens(expected, 2);  // the model goes on behind them
  expected = dictated;
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(ids_of(prompt_of(9)), expected);
  EXPECT_EQ(ids_of(prompt_of(8)), greedy_tokens(prompt_of(8), 10));
  // Drafts are right where they are what was dictated.
  options.drafter = [&](const Sequence& sequence, int most) {
    const auto next = std::ssize(sequence.output());
    Ids ids(expected.begin() + next, expected.begin() + std::min<int64_t>(next + most, 10));
    if (ids.size() > 3) ids[3] = 49;
    return ids;
  };
  EXPECT_EQ(ids_of(prompt_of(9)), expected);
  FakeEngine engine = make(options);
  engine.core->add_request(prompt_of(9), in_deltas(greedy(10)));
  EXPECT_EQ(steps_of(*engine.core), (std::vector<size_t>{1, 4, 4, 1}));
}

TEST_P(Drafts, SyntheticAcceptanceHasItsLength) {
  // Of four drafts and one more: 1 + p + p^2 + p^3 + p^4.
  const auto config = *parse_speculative_config(
      R"({"method": "ngram", "num_speculative_tokens": 4, "rejection_sample_method": "synthetic",
          "synthetic_acceptance_length": 3.2})");
  const double p = config.synthetic_acceptance();
  EXPECT_NEAR(1 + p + p * p + p * p * p + p * p * p * p, 3.2, 1e-6);
  FakeEngine engine =
      make({.num_blocks = 2000,
            .max_model_len = 4000,
            .drafter = [](const Sequence&, int most) { return Ids(std::min(most, 4), 7); },
            .synthetic_acceptance = p});
  engine.core->add_request(prompt_of(9), in_deltas(greedy(3900)));
  const std::vector<size_t> counts = steps_of(*engine.core);
  EXPECT_NEAR(3900.0 / static_cast<double>(counts.size()), 3.2, 0.15);
  EXPECT_GT(std::ranges::count(counts, 1U), 50);
  EXPECT_GT(std::ranges::count(counts, 5U), 50);
}

TEST_P(Drafts, AStopInTheMiddleDropsTheRest) {
  const Ids expected = greedy_tokens(prompt_of(9), 20);
  for (int last = 1; last < 8; ++last) {
    if (std::ranges::count(std::span(expected).first(last), expected[last]) > 0) continue;
    FakeEngine engine = make({.drafter = greedy_drafts(3)});
    SamplingParams params = greedy(20);
    params.stop_token_ids = {expected[last]};
    params.logprobs = 0;
    const RequestOutput output = run_one(*engine.core, prompt_of(9), params);
    EXPECT_EQ(output.outputs[0].token_ids, Ids(expected.begin(), expected.begin() + last + 1));
    EXPECT_EQ(output.outputs[0].logprobs.size(), last + 1U);
    EXPECT_EQ(output.outputs[0].finish_reason, FinishReason::kStop);
  }
}

TEST_P(Drafts, AStepThatGivesNothingIsTakenAgain) {
  FakeEngine engine = make({.drafter = greedy_drafts(1)});
  engine.runner->gives_any_number = true;
  engine.core->add_request(prompt_of(8), in_deltas(greedy(30)));
  const auto counts = steps_of(*engine.core);
  EXPECT_GT(std::ranges::count(counts, 0U), 2);
  EXPECT_GT(std::ranges::count(counts, 2U), 2);
}

TEST_P(Drafts, OnlyTextThatWasDrawnIsCached) {
  FakeEngine engine = make({.drafter = greedy_drafts(6, 1)});
  const Ids prompt = prompt_of(8);
  RequestOutput output = run_one(*engine.core, prompt, greedy(16));
  Ids text = prompt;
  text.insert(text.end(), output.outputs[0].token_ids.begin(), output.outputs[0].token_ids.end());
  output = run_one(*engine.core, text, greedy(5));
  EXPECT_EQ(output.num_cached_tokens, 20);  // the last of its 24 tokens was never computed
  EXPECT_EQ(output.outputs[0].token_ids, greedy_tokens(text, 5));
}

TEST_P(Drafts, NobodyGivesUpBlocksForThem) {
  // Both grow to 16 tokens, in blocks of 4.
  for (const int num_blocks : {8, 9}) {
    FakeEngine engine = make({.num_blocks = num_blocks, .drafter = greedy_drafts(8, 0)});
    engine.core->add_request(prompt_of(8), greedy(9));
    engine.core->add_request(prompt_of(8, 20), greedy(9));
    for (const auto& [id, output] : run(*engine.core)) EXPECT_EQ(output.num_preemptions, 0);
  }
}

// Of 8 blocks of 4 tokens, 3 stay cached; others write into all the rest.
TEST_P(Drafts, TakeNoCachedBlocks) {
  for (const bool has_drafts : {false, true}) {
    FakeEngineOptions options{.num_blocks = 8};
    if (has_drafts) options.drafter = greedy_drafts(12, 0);
    FakeEngine engine = make(options);
    run_one(*engine.core, prompt_of(13), greedy(1));
    SamplingParams params = greedy(18);
    params.stop_token_ids = {greedy_tokens(prompt_of(13, 20), 4).back()};
    const RequestOutput output = run_one(*engine.core, prompt_of(13, 20), params);
    EXPECT_LE(output.outputs[0].token_ids.size(), 4U);
    EXPECT_EQ(run_one(*engine.core, prompt_of(13), greedy(1)).num_cached_tokens, 12) << has_drafts;
  }
}

TEST_P(Drafts, AreAskedForWhateverEachDrawDependsOn) {
  std::vector<int> asked;
  const auto drafter = [&](const Sequence&, int most) {
    asked.push_back(most);
    return Ids{};
  };
  const auto asked_for = [&](const SamplingParams& params) {
    asked.clear();
    FakeEngineOptions options{.pipeline_depth = GetParam(), .drafter = drafter};
    run_one(*make_fake_engine(options, alphabet()).core, prompt_of(9), params);
    return asked;
  };
  EXPECT_EQ(asked_for(greedy(5)), (std::vector<int>{3, 2, 1}));
  SamplingParams late = greedy(7);
  late.min_tokens = 4;
  EXPECT_EQ(asked_for(late), (std::vector<int>{5, 4, 3, 2, 1}));
  SamplingParams of_one_letter = greedy(5), of_two = greedy(5);
  of_one_letter.bad_words = {"a"};
  of_two.bad_words = {"ab"};
  EXPECT_EQ(asked_for(of_one_letter), (std::vector<int>{3, 2, 1}));
  EXPECT_EQ(asked_for(of_two), (std::vector<int>{3, 2, 1}));
  SamplingParams allowed = greedy(5);
  allowed.allowed_token_ids = Ids{1, 2};
  EXPECT_EQ(asked_for(allowed), (std::vector<int>{3, 2, 1}));
}

}  // namespace
}  // namespace nanovllm
