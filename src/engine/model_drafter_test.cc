// A model that guesses: the target itself, so that it is right wherever it has computed what the
// target has. That drafts never change a token is engine_property_test.cc's.
#include "engine/model_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>

#include "engine/engine_test_support.h"

namespace nanovllm {
namespace {

struct Drafted {
  int num_draft_tokens = 0, num_accepted = 0, num_preemptions = 0;
};

Drafted run_all(EngineCore& core) {
  Drafted drafted;
  while (!core.is_finished()) {
    core.step();
    EXPECT_EQ(core.check_integrity(), "");
    drafted.num_draft_tokens += core.last_step().num_draft_tokens;
    drafted.num_accepted += core.last_step().num_accepted_tokens();
    drafted.num_preemptions += core.last_step().num_preemptions;
  }
  return drafted;
}

class ModelDrafts : public ::testing::TestWithParam<int> {
 protected:
  FakeEngine make(FakeEngineOptions options = {}) const {
    options.pipeline_depth = GetParam();
    options.drafts_itself = true;
    return make_fake_engine(options);
  }
};
INSTANTIATE_TEST_SUITE_P(PipelineDepth, ModelDrafts, ::testing::Values(0, 1));

TEST_P(ModelDrafts, AreRightWhereBothModelsAgree) {
  for (const bool is_greedy : {true, false}) {
    FakeEngine engine = make();
    SamplingParams params = is_greedy ? greedy(40) : random(40);
    params.n = is_greedy ? 1 : 2;
    engine.core->add_request(prompt_of(9), params);
    engine.core->add_request(prompt_of(30, 5), params);
    const Drafted drafted = run_all(*engine.core);
    EXPECT_GT(drafted.num_draft_tokens, 60);
    EXPECT_EQ(drafted.num_accepted, drafted.num_draft_tokens);
  }
}

TEST_P(ModelDrafts, PromptsAreComputedInChunksAndInTheirStep) {
  FakeEngine engine = make({.max_num_batched_tokens = 7});
  engine.core->add_request(prompt_of(40), greedy(30));
  engine.core->add_request(prompt_of(23, 3), greedy(30));
  const Drafted drafted = run_all(*engine.core);
  EXPECT_GT(drafted.num_draft_tokens, 20);
  EXPECT_EQ(drafted.num_accepted, drafted.num_draft_tokens);
}

// Texts of whole blocks, of which the last rows were behind right guesses.
TEST_P(ModelDrafts, FindWhatAPrefixHitBrings) {
  FakeEngine engine = make();
  Ids text = prompt_of(8);
  for (int turn = 0; turn < 6; ++turn) {
    engine.core->add_request(text, greedy(17));
    const Drafted drafted = run_all(*engine.core);
    EXPECT_GT(drafted.num_draft_tokens, 10);
    EXPECT_EQ(drafted.num_accepted, drafted.num_draft_tokens);
    const Ids next = greedy_tokens(text, 17);
    text.insert(text.end(), next.begin(), next.end());
    text.push_back(turn);
  }
}

TEST_P(ModelDrafts, ArePreemptedAndRightAgain) {
  FakeEngine engine = make({.num_blocks = 15});
  for (int i = 0; i < 3; ++i) engine.core->add_request(prompt_of(9, i), random(35, i));
  const Drafted drafted = run_all(*engine.core);
  EXPECT_GT(drafted.num_preemptions, 0);
  EXPECT_GT(drafted.num_draft_tokens, 20);
  EXPECT_EQ(drafted.num_accepted, drafted.num_draft_tokens);
}

TEST_P(ModelDrafts, HaveTheirKvInTheGroupThatKeepsAll) {
  FakeEngine engine = make({.num_blocks = 200, .kv_windows = {3, 0, 5}});
  engine.core->add_request(prompt_of(9), greedy(60));
  const Drafted drafted = run_all(*engine.core);
  EXPECT_GT(drafted.num_draft_tokens, 30);
  EXPECT_EQ(drafted.num_accepted, drafted.num_draft_tokens);
}

// Those that gave way are computed again: guesses are as right as ever.
TEST_P(ModelDrafts, FewerBlocksCostNoGuessTheirTruth) {
  for (const int most_draft_blocks : {30, 12, 4}) {
    FakeEngine engine = make({.num_blocks = 200,
                              .kv_windows = {3, 0, 5},
                              .most_drafts = 4,
                              .most_draft_blocks = most_draft_blocks});
    Drafted drafted;
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < 3; ++i) engine.core->add_request(prompt_of(9, i), greedy(30));
      const Drafted one = run_all(*engine.core);
      drafted.num_draft_tokens += one.num_draft_tokens;
      drafted.num_accepted += one.num_accepted;
    }
    EXPECT_GT(drafted.num_draft_tokens, most_draft_blocks == 4 ? 10 : 100);
    EXPECT_EQ(drafted.num_accepted, drafted.num_draft_tokens);
  }
}

// It has its guesses paused, and computes prompts.
TEST_P(ModelDrafts, OthersAreTakenWhereItsPassesAreNotWorthIt) {
  DraftPlanner planner(0, 0.8);
  for (int i = 0; i < 100; ++i) {
    planner.learn({{1, 2, 3}, 0, 1}, Ids{1, 2, 3});
    for (const int num_rows : {1, 2, 8}) planner.learn_step(num_rows, 1);
    planner.learn_pass(1, 1000);
  }
  const auto others = [](const Sequence& sequence, int most) {
    return greedy_tokens(sequence.token_ids, std::min(3, most));
  };
  FakeEngine engine = make({.other_drafters = {others}, .draft_planner = planner});
  engine.runner->step_time = std::chrono::milliseconds(1);
  engine.core->add_request(prompt_of(9), greedy(9));
  const Drafted drafted = run_all(*engine.core);
  EXPECT_EQ(drafted.num_draft_tokens, 6);
  EXPECT_EQ(drafted.num_accepted, 6);
}

// What a grammar forces is longer than all that the model may guess.
TEST_P(ModelDrafts, MakeNoPassesWhereOthersKnowMore) {
  int num_steps = 0;
  const auto others = [&](const Sequence& sequence, int most) {
    ++num_steps;
    return greedy_tokens(sequence.token_ids, std::min(8, most));
  };
  FakeEngine engine = make({.other_drafters = {others}, .most_drafts = 8});
  engine.core->add_request(prompt_of(9), greedy(60));
  const Drafted drafted = run_all(*engine.core);
  EXPECT_EQ(drafted.num_accepted, drafted.num_draft_tokens);
  EXPECT_GT(drafted.num_accepted, 40);
  EXPECT_LT(engine.draft_runner->num_steps, num_steps);
}

TEST_P(ModelDrafts, AModelThatFailsEndsNobodysRequest) {
  FakeEngine engine = make();
  engine.draft_runner->fail_at_step = 3;
  const uint64_t first = engine.core->add_request(prompt_of(9), greedy(40));
  const uint64_t second = engine.core->add_request(prompt_of(30, 5), greedy(40));
  testing::internal::CaptureStderr();
  const auto outputs = run(*engine.core);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(outputs.at(first).outputs[0].token_ids, greedy_tokens(prompt_of(9), 40));
  EXPECT_EQ(outputs.at(second).outputs[0].token_ids, greedy_tokens(prompt_of(30, 5), 40));
  EXPECT_EQ(said,
            "nanovllm: from now on nothing is drafted by what speculative_config names, as it "
            "failed: The device is on fire.\n");
}

// Of a text in blocks 0 to 3, by a model of 50 tokens of which the target knows the first ones.
Ids guesses_of(const Ids& text, int vocab_size, int max_model_len = 100) {
  ModelDrafter drafter(std::make_unique<FakeRunner>(8, 4, 50, 1), {.max_num_batched_tokens = 5,
                                                                   .max_model_len = max_model_len,
                                                                   .vocab_size = vocab_size,
                                                                   .block_size = 4,
                                                                   .num_target_blocks = 8});
  Sequence sequence(0, 0, text, 100);
  sequence.block_table = {0, 1, 2, 3};
  DraftRequest request = {.sequence = &sequence,
                          .num_new_tokens = static_cast<int>(text.size()),
                          .most = 5,
                          .row = {.temperature = 0}};
  drafter.propose(std::span(&request, 1));
  return request.draft.ids;
}

TEST(ModelDrafter, GuessesUpToATokenThatOneOfBothDoesNotKnow) {
  const Ids text = prompt_of(9), all = greedy_tokens(text, 5);
  EXPECT_EQ(guesses_of(text, 50), all);
  const int32_t third = all[2];
  ASSERT_GT(third, std::max({9, all[0], all[1]}));
  EXPECT_EQ(guesses_of(text, third), Ids(all.begin(), all.begin() + 2));
  EXPECT_EQ(guesses_of(text, 9), Ids{});
}

TEST(ModelDrafter, GuessesUpToTheLastTokenThatItSees) {
  const Ids text = prompt_of(9), all = greedy_tokens(text, 5);
  EXPECT_EQ(guesses_of(text, 50, 11), Ids(all.begin(), all.begin() + 3));
  EXPECT_EQ(guesses_of(text, 50, 9), Ids(all.begin(), all.begin() + 1));
  EXPECT_EQ(guesses_of(text, 50, 8), Ids{});
}

}  // namespace
}  // namespace nanovllm
