// A model that guesses: the target itself, so that it is right wherever it has computed what the
// target has. That drafts never change a token is engine_property_test.cc's.
#include "engine/model_drafter.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace nanovllm
