// Drafts of text that follows a grammar: where its automaton is outgrown does not depend on them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <span>

#include "engine/constraint_testing.h"

namespace nanovllm {
namespace {

class StructuredDrafts : public ::testing::TestWithParam<int> {
 protected:
  FakeEngine make(FakeEngineOptions options = {}) const {
    options.pipeline_depth = GetParam();
    return make_fake_engine(options, short_texts());
  }
};
INSTANTIATE_TEST_SUITE_P(PipelineDepth, StructuredDrafts, ::testing::Values(0, 1));

// Every letter doubles the ways to go on: somewhere no mask can be made any more, though each byte
// still leads to a state. Right drafts change nothing of that.
TEST_P(StructuredDrafts, AnAutomatonOutgrownBehindDraftsIsAsWithout) {
  SamplingParams params = greedy(40);
  params.ignore_eos = false;
  params.structured_outputs.emplace().grammar =
      R"(root ::= [a-zA-Z ,.] root "1" | [a-zA-Z ,.] root "2" | "0")";
  int num_outgrown = 0, num_accepted = 0;
  for (size_t given = 1; given < 13; ++given) {
    const Ids previous(given, 1);
    FakeEngine plain = make();
    plain.core->add_request(prompt_of(9), params, {previous});
    const auto expected = run(*plain.core).at(0).outputs[0];
    FakeEngine engine = make({.drafter = [&](const Sequence& sequence, int most) {
      const auto rest = std::span(expected.token_ids).subspan(sequence.output().size());
      return Ids(rest.begin(), rest.begin() + std::min<size_t>(most, rest.size()));
    }});
    engine.core->add_request(prompt_of(9), params, {previous});
    std::map<uint64_t, RequestOutput> outputs;
    while (!engine.core->is_finished()) {
      for (RequestOutput& output : engine.core->step()) outputs[0] = std::move(output);
      num_accepted += engine.core->last_step().num_accepted_tokens();
    }
    const auto output = outputs.at(0).outputs[0];
    EXPECT_EQ(output.token_ids, expected.token_ids) << given;
    EXPECT_EQ(output.finish_reason, expected.finish_reason) << given;
    EXPECT_EQ(output.stop_reason, expected.stop_reason) << given;
    num_outgrown += output.finish_reason == FinishReason::kAbort ? 1 : 0;
  }
  EXPECT_GT(num_outgrown, 0);
  EXPECT_GT(num_accepted, 0);
}

TEST_P(StructuredDrafts, WhatFollowsAWrongDraftEndsNoText) {
  SamplingParams params = greedy(20);
  params.ignore_eos = false;
  params.structured_outputs.emplace().grammar =
      R"(root ::= "a" ("b" bad | "c" [acd]{12})
bad ::= [a-zA-Z ,.] bad "1" | [a-zA-Z ,.] bad "2" | "0")";
  params.allowed_token_ids = Ids{0, 1, 3, 4};
  const auto run_with = [&](const FunctionDrafter::Function& drafter) {
    FakeEngine engine = make({.drafter = drafter});
    return run_one(*engine.core, prompt_of(9), params).outputs[0];
  };
  const auto expected = run_with({});
  EXPECT_EQ(expected.text.size(), 14u);
  EXPECT_EQ(expected.finish_reason, FinishReason::kStop);
  for (size_t length = 1; length < 15; ++length) {
    const auto output = run_with([&](const Sequence& sequence, int most) {
      Ids draft(std::min<size_t>(length, most), 1);
      if (sequence.output().size() == 1 && !draft.empty()) draft[0] = 2;
      return draft;
    });
    EXPECT_EQ(output.text, expected.text) << length;
    EXPECT_EQ(output.finish_reason, expected.finish_reason) << length;
  }
}

}  // namespace
}  // namespace nanovllm
