#include "engine/engine_core.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "engine/engine_test_support.h"

namespace nanovllm {
namespace {

// Everything below holds whether or not steps are submitted ahead.
class Engine : public ::testing::TestWithParam<int> {
 protected:
  FakeEngine make(FakeEngineOptions options = {}) {
    options.pipeline_depth = GetParam();
    return make_fake_engine(options);
  }
};

INSTANTIATE_TEST_SUITE_P(PipelineDepth, Engine, ::testing::Values(0, 1));

TEST_P(Engine, GeneratesMaxTokens) {
  FakeEngine engine = make();
  const RequestOutput output = run_one(*engine.core, prompt_of(9), greedy(7));
  EXPECT_TRUE(output.finished);
  EXPECT_EQ(output.prompt_token_ids, prompt_of(9));
  ASSERT_EQ(output.outputs.size(), 1u);
  EXPECT_EQ(output.outputs[0].token_ids, greedy_tokens(prompt_of(9), 7));
  EXPECT_EQ(output.outputs[0].finish_reason, FinishReason::kLength);
  EXPECT_EQ(output.outputs[0].stop_reason, StopReason());
  EXPECT_GT(output.metrics.time_to_first_token, 0);
  EXPECT_GE(output.metrics.time_to_finish, output.metrics.time_to_first_token);
}

TEST_P(Engine, StopsAtEosAndKeepsIt) {
  const Ids expected = greedy_tokens(prompt_of(9), 7);
  FakeEngine engine = make({.eos_token_ids = {expected[3]}});
  SamplingParams params = greedy(7);
  params.ignore_eos = false;
  const RequestOutput output = run_one(*engine.core, prompt_of(9), params);
  EXPECT_EQ(output.outputs[0].token_ids, Ids(expected.begin(), expected.begin() + 4));
  EXPECT_EQ(output.outputs[0].finish_reason, FinishReason::kStop);
  EXPECT_EQ(output.outputs[0].stop_reason, StopReason(expected[3]));
}

TEST_P(Engine, StopsAtAStopTokenEvenWhereEosIsIgnored) {
  const Ids expected = greedy_tokens(prompt_of(9), 7);
  FakeEngine engine = make({.eos_token_ids = {expected[1]}});
  SamplingParams params = greedy(7);
  params.stop_token_ids = {expected[4]};
  const RequestOutput output = run_one(*engine.core, prompt_of(9), params);
  EXPECT_EQ(output.outputs[0].token_ids, Ids(expected.begin(), expected.begin() + 5));
  EXPECT_EQ(output.outputs[0].finish_reason, FinishReason::kStop);
  EXPECT_EQ(output.outputs[0].stop_reason, StopReason(expected[4]));
}

TEST_P(Engine, NeitherEosNorStopTokensComeBeforeMinTokens) {
  const Ids expected = greedy_tokens(prompt_of(9), 7);
  FakeEngine engine = make({.eos_token_ids = {expected[2]}});
  SamplingParams params = greedy(12);
  params.ignore_eos = false;
  params.stop_token_ids = {expected[0]};
  params.min_tokens = 8;
  const Ids got = run_one(*engine.core, prompt_of(9), params).outputs[0].token_ids;
  ASSERT_GE(got.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_NE(got[i], expected[0]);
    EXPECT_NE(got[i], expected[2]);
  }
}

TEST_P(Engine, DrawsNothingButWhatIsAllowed) {
  Ids text = prompt_of(9);
  const std::vector<uint32_t> allowed = {1u << 4 | 1u << 31, 1u << (49 - 32)};
  for (int i = 0; i < 12; ++i) {
    const SamplingRow row = {.temperature = 0, .allowed = allowed};
    text.push_back(FakeModel::sample(FakeModel::fold(text), row, 50).token_id);
  }
  FakeEngine engine = make();
  SamplingParams params = greedy(12);
  params.allowed_token_ids = Ids{49, 4, 31, 4};
  const Ids got = run_one(*engine.core, prompt_of(9), params).outputs[0].token_ids;
  EXPECT_EQ(got, Ids(text.begin() + 9, text.end()));
  EXPECT_EQ(std::set<int32_t>(got.begin(), got.end()), (std::set<int32_t>{4, 31, 49}));
  params.allowed_token_ids = Ids{7};
  EXPECT_EQ(run_one(*engine.core, prompt_of(9), params).outputs[0].token_ids, Ids(12, 7));
}

TEST_P(Engine, TheLengthOfTheModelEndsARequest) {
  FakeEngine engine = make({.max_model_len = 12});
  const RequestOutput output = run_one(*engine.core, prompt_of(9), greedy(100));
  EXPECT_EQ(output.outputs[0].token_ids, greedy_tokens(prompt_of(9), 3));
  EXPECT_EQ(output.outputs[0].finish_reason, FinishReason::kLength);
}

TEST_P(Engine, OutputsHoldWhatTheirKindAsksFor) {
  const Ids expected = greedy_tokens(prompt_of(5), 6);
  FakeEngine engine = make();
  std::map<RequestOutputKind, std::vector<RequestOutput>> outputs;
  for (const auto kind :
       {RequestOutputKind::kCumulative, RequestOutputKind::kDelta, RequestOutputKind::kFinalOnly}) {
    SamplingParams params = greedy(6);
    params.output_kind = kind;
    engine.core->add_request(prompt_of(5), params);
    while (!engine.core->is_finished()) {
      for (RequestOutput& output : engine.core->step()) outputs[kind].push_back(std::move(output));
    }
  }
  const auto& cumulative = outputs[RequestOutputKind::kCumulative];
  const auto& delta = outputs[RequestOutputKind::kDelta];
  ASSERT_EQ(cumulative.size(), 6u);
  ASSERT_EQ(delta.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(cumulative[i].outputs[0].token_ids,
              Ids(expected.begin(), expected.begin() + static_cast<ptrdiff_t>(i) + 1));
    EXPECT_EQ(delta[i].outputs[0].token_ids, Ids{expected[i]});
    EXPECT_EQ(cumulative[i].prompt_token_ids, prompt_of(5));
    EXPECT_EQ(delta[i].prompt_token_ids, i == 0 ? prompt_of(5) : Ids{});
    EXPECT_EQ(delta[i].finished, i == 5);
  }
  ASSERT_EQ(outputs[RequestOutputKind::kFinalOnly].size(), 1u);
  EXPECT_EQ(outputs[RequestOutputKind::kFinalOnly][0].outputs[0].token_ids, expected);
}

TEST_P(Engine, AFullyCachedPromptComputesOneToken) {
  FakeEngine engine = make();
  const RequestOutput first = run_one(*engine.core, prompt_of(16), greedy(1));
  EXPECT_EQ(engine.runner->num_computed_tokens, 16);
  const RequestOutput second = run_one(*engine.core, prompt_of(16), greedy(1));
  EXPECT_EQ(engine.runner->num_computed_tokens, 17);
  EXPECT_EQ(first.num_cached_tokens, 0);
  EXPECT_EQ(second.num_cached_tokens, 15);
  EXPECT_EQ(second.outputs[0].token_ids, first.outputs[0].token_ids);
}

TEST_P(Engine, OnlyRequestsOfTheSameSaltShareWhatIsCached) {
  FakeEngine engine = make();
  const auto num_cached_tokens = [&](const std::optional<std::string>& salt, int n = 1) {
    SamplingParams params = random(4, 1);
    params.n = n;
    params.cache_salt = salt;
    return run_one(*engine.core, prompt_of(40), params).num_cached_tokens;
  };
  EXPECT_EQ(num_cached_tokens("a"), 0);
  EXPECT_EQ(num_cached_tokens({}), 0);
  EXPECT_EQ(num_cached_tokens("b", 3), 0);
  EXPECT_EQ(num_cached_tokens("a"), 39);
  EXPECT_EQ(num_cached_tokens("a", 3), 39);
  EXPECT_EQ(num_cached_tokens("b"), 39);
  EXPECT_EQ(num_cached_tokens({}), 39);
  EXPECT_EQ(num_cached_tokens("c"), 0);
}

TEST_P(Engine, AResetOfThePrefixCacheHidesWhatWasComputedBefore) {
  FakeEngine engine = make();
  SamplingParams salted = greedy(4);
  salted.cache_salt = "a";
  for (const SamplingParams& params : {greedy(4), salted}) {
    const auto num_cached_tokens = [&] {
      return run_one(*engine.core, prompt_of(40), params).num_cached_tokens;
    };
    EXPECT_EQ(num_cached_tokens(), 0);
    EXPECT_EQ(num_cached_tokens(), 39);
    const uint64_t running = engine.core->add_request(prompt_of(40), params);
    engine.core->step();
    engine.core->reset_prefix_cache();
    const uint64_t later = engine.core->add_request(prompt_of(40), params);
    const auto outputs = run(*engine.core);
    EXPECT_EQ(outputs.at(running).num_cached_tokens, 39);
    EXPECT_EQ(outputs.at(later).num_cached_tokens, 0);
    for (const auto& [id, output] : outputs) {
      EXPECT_EQ(output.outputs[0].token_ids, greedy_tokens(prompt_of(40), 4));
    }
    EXPECT_EQ(num_cached_tokens(), 39);
  }
}

// What is forgotten is computed again, and never found by another one.
TEST(CacheSalts, ASaltThatWasForgottenHasANewNumber) {
  CacheSalts salts;
  EXPECT_EQ(salts.number({}), 0U);
  const uint64_t first = salts.number("a");
  EXPECT_NE(first, 0U);
  std::set<uint64_t> numbers = {first};
  for (int i = 0; i < 65'535; ++i) numbers.insert(salts.number(fmt::format("salt {}", i)));
  EXPECT_EQ(numbers.size(), 65'536U);
  EXPECT_EQ(salts.number("a"), first);
  EXPECT_FALSE(numbers.contains(salts.number("one too many")));
  const uint64_t second = salts.number("a");
  EXPECT_FALSE(numbers.contains(second));
  salts.number(std::string(size_t{16} << 20, 'x'));
  EXPECT_GT(salts.number("a"), second);
}

TEST_P(Engine, NothingIsCachedWithoutPrefixCaching) {
  FakeEngine engine = make({.enable_prefix_caching = false});
  run_one(*engine.core, prompt_of(16), greedy(1));
  EXPECT_EQ(run_one(*engine.core, prompt_of(16), greedy(1)).num_cached_tokens, 0);
  EXPECT_EQ(engine.runner->num_computed_tokens, 32);
}

TEST_P(Engine, PromptLogprobsAreComputedForThePromptAsAWhole) {
  FakeEngine engine = make({.max_num_batched_tokens = 5});
  run_one(*engine.core, prompt_of(16), greedy(1));
  SamplingParams params = greedy(1);
  params.prompt_logprobs = 2;
  const RequestOutput output = run_one(*engine.core, prompt_of(16), params);
  EXPECT_EQ(output.num_cached_tokens, 0);
  ASSERT_EQ(output.prompt_logprobs.size(), 16u);
  EXPECT_FALSE(output.prompt_logprobs[0].has_value());
  for (size_t i = 1; i < 16; ++i) {
    const PositionLogprobs& position = output.prompt_logprobs[i].value();
    ASSERT_EQ(position.size(), 3u);
    EXPECT_EQ(position[0].token_id, static_cast<int32_t>(i) + 1);
  }
  // Its blocks are cached for others all the same.
  EXPECT_EQ(run_one(*engine.core, prompt_of(17), greedy(1)).num_cached_tokens, 16);
}

TEST_P(Engine, LogprobsComeWithEachToken) {
  FakeEngine engine = make();
  SamplingParams params = greedy(3);
  params.logprobs = 0;
  const RequestOutput output = run_one(*engine.core, prompt_of(5), params);
  ASSERT_EQ(output.outputs[0].logprobs.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(output.outputs[0].logprobs[i].size(), 1u);
    EXPECT_EQ(output.outputs[0].logprobs[i][0].token_id, output.outputs[0].token_ids[i]);
  }
}

TEST_P(Engine, CompletionsShareTheirPromptsFullBlocksWithoutPrefixCachingToo) {
  for (const bool caching : {true, false}) {
    FakeEngine engine = make({.enable_prefix_caching = caching});
    SamplingParams params = random(5, 7);
    params.n = 4;
    const RequestOutput output = run_one(*engine.core, prompt_of(18), params);
    // 18 once, then the 2 behind the full blocks for each of the others, then 4 fed back each.
    EXPECT_EQ(engine.runner->num_computed_tokens, 18 + 3 * 2 + 4 * 4);
    std::set<Ids> texts;
    for (const CompletionOutput& completion : output.outputs) {
      EXPECT_EQ(completion.index, static_cast<int>(texts.size()));
      texts.insert(completion.token_ids);
      EXPECT_EQ(completion.token_ids.size(), 5u);
    }
    EXPECT_EQ(texts.size(), 4u);
    if (!caching) {  // and nobody else sees them
      EXPECT_EQ(run_one(*engine.core, prompt_of(18), greedy(1)).num_cached_tokens, 0);
    }
  }
}

TEST_P(Engine, CompletionsRunWhenTheFirstOneEndsWithItsFirstToken) {
  FakeEngine engine = make();
  SamplingParams params = random(1, 7);
  params.n = 3;
  const RequestOutput output = run_one(*engine.core, prompt_of(10), params);
  for (const CompletionOutput& completion : output.outputs) {
    EXPECT_EQ(completion.token_ids.size(), 1u);
    EXPECT_EQ(completion.finish_reason, FinishReason::kLength);
  }
}

TEST_P(Engine, CompletionsDrawWithConsecutiveSeeds) {
  FakeEngine engine = make();
  SamplingParams params = random(6, 40);
  params.n = 3;
  const RequestOutput output = run_one(*engine.core, prompt_of(10), params);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(run_one(*engine.core, prompt_of(10), random(6, 40 + i)).outputs[0].token_ids,
              output.outputs[i].token_ids);
  }
}

TEST_P(Engine, RequestsWithoutASeedDifferAndRepeatWithTheEngine) {
  const auto three = [this](int64_t seed) {
    FakeEngine engine = make({.seed = seed});
    std::vector<Ids> texts;
    for (int i = 0; i < 3; ++i) {
      texts.push_back(run_one(*engine.core, prompt_of(10), random(6)).outputs[0].token_ids);
    }
    return texts;
  };
  const auto texts = three(1);
  EXPECT_EQ(std::set<Ids>(texts.begin(), texts.end()).size(), 3u);
  EXPECT_EQ(three(1), texts);
  EXPECT_NE(three(2), texts);
}

TEST_P(Engine, AbortsARequestInTheQueue) {
  FakeEngine engine = make({.max_num_seqs = 1});
  const uint64_t first = engine.core->add_request(prompt_of(5), greedy(4));
  const uint64_t second = engine.core->add_request(prompt_of(5), greedy(4));
  engine.core->step();
  engine.core->abort_request(second);
  const auto outputs = run(*engine.core);
  EXPECT_EQ(outputs.at(second).outputs[0].finish_reason, FinishReason::kAbort);
  EXPECT_TRUE(outputs.at(second).outputs[0].token_ids.empty());
  EXPECT_TRUE(outputs.at(second).finished);
  EXPECT_EQ(outputs.at(first).outputs[0].token_ids, greedy_tokens(prompt_of(5), 4));
}

TEST_P(Engine, AbortsARunningRequestAndKeepsWhatItHas) {
  FakeEngine engine = make();
  const uint64_t id = engine.core->add_request(prompt_of(5), greedy(50));
  for (int i = 0; i < 3; ++i) engine.core->step();
  engine.core->abort_request(id);
  EXPECT_EQ(engine.core->check_integrity(), "");
  EXPECT_FALSE(engine.core->is_finished());  // its last output is still to come
  const auto outputs = engine.core->step();
  ASSERT_EQ(outputs.size(), 1u);
  EXPECT_EQ(outputs[0].outputs[0].token_ids, greedy_tokens(prompt_of(5), 3));
  EXPECT_EQ(outputs[0].outputs[0].finish_reason, FinishReason::kAbort);
  EXPECT_TRUE(engine.core->is_finished());
  EXPECT_TRUE(engine.core->step().empty());
}

TEST_P(Engine, AbortsInTheMiddleOfAPromptAndOfSiblings) {
  FakeEngine engine = make({.max_num_batched_tokens = 4});
  SamplingParams params = random(8, 1);
  params.n = 3;
  const uint64_t id = engine.core->add_request(prompt_of(10), params);
  engine.core->step();
  engine.core->abort_request(id);
  engine.core->abort_request(id);
  engine.core->abort_request(12345);
  const auto outputs = run(*engine.core);
  ASSERT_EQ(outputs.at(id).outputs.size(), 3u);
  for (const auto& output : outputs.at(id).outputs) {
    EXPECT_EQ(output.finish_reason, FinishReason::kAbort);
  }
}

// A runner that failed is empty; one that returned something wrong may hold the step behind it.
void expect_to_go_on(const FakeEngineOptions& options, int FakeRunner::*fault,
                     const std::string& sentence) {
  for (int failing_step = 0; failing_step < 7; ++failing_step) {
    FakeEngine engine = make_fake_engine(options);
    engine.runner->*fault = failing_step;
    const uint64_t a = engine.core->add_request(prompt_of(10), greedy(6));
    const uint64_t b = engine.core->add_request(prompt_of(5, 20), greedy(6));
    std::map<uint64_t, Ids> got;
    int num_errors = 0;
    while (!engine.core->is_finished()) {
      try {
        for (const auto& output : engine.core->step()) {
          got[output.request_id] = output.outputs[0].token_ids;
        }
      } catch (const Error& error) {
        EXPECT_EQ(error.what(), sentence);
        ++num_errors;
      }
      ASSERT_EQ(engine.core->check_integrity(), "");
    }
    EXPECT_EQ(num_errors, 1);
    EXPECT_EQ(got[a], greedy_tokens(prompt_of(10), 6));
    EXPECT_EQ(got[b], greedy_tokens(prompt_of(5, 20), 6));
  }
}

TEST_P(Engine, AFailingStepLeavesAnEngineThatGoesOn) {
  expect_to_go_on({.max_num_batched_tokens = 8, .pipeline_depth = GetParam()},
                  &FakeRunner::fail_at_step, "The device is on fire.");
}

TEST_P(Engine, AFailingDrawLeavesAnEngineThatGoesOn) {
  expect_to_go_on({.max_num_batched_tokens = 8, .pipeline_depth = GetParam()},
                  &FakeRunner::fail_at_draw, "The device is on fire.");
}

TEST_P(Engine, AnImpossibleTokenLeavesAnEngineThatGoesOn) {
  expect_to_go_on({.max_num_batched_tokens = 8, .pipeline_depth = GetParam()},
                  &FakeRunner::impossible_at_step, "The model sampled token 50 but has only 50.");
}

TEST_P(Engine, TellsWhatAStepComputed) {
  FakeEngine engine = make({.max_num_batched_tokens = 12});
  const uint64_t a = engine.core->add_request(prompt_of(4), greedy(9));
  engine.core->step();
  EXPECT_EQ(engine.core->last_step().num_prefill_tokens, 4);
  const uint64_t b = engine.core->add_request(prompt_of(20, 7), greedy(9));
  engine.core->step();
  if (GetParam() == 1) engine.core->step();  // the one before was submitted before b came
  const auto& schedule = engine.core->last_schedule();
  ASSERT_EQ(schedule.size(), 2u);
  EXPECT_EQ(schedule[0].request_id, a);
  EXPECT_EQ(schedule[0].num_new_tokens, 1);
  EXPECT_EQ(schedule[0].num_computed_tokens, GetParam() == 1 ? 5 : 4);
  EXPECT_TRUE(schedule[0].sampled);
  EXPECT_TRUE(schedule[0].decode);
  EXPECT_EQ(schedule[1].request_id, b);
  EXPECT_EQ(schedule[1].num_new_tokens, 11);
  EXPECT_FALSE(schedule[1].sampled);
  EXPECT_FALSE(schedule[1].decode);
  const StepStats& stats = engine.core->last_step();
  EXPECT_EQ(stats.num_prefill_tokens, 11);
  EXPECT_EQ(stats.num_decode_tokens, 1);
  EXPECT_EQ(stats.num_running, 2);
  EXPECT_EQ(stats.num_total_blocks, 64);
  EXPECT_GT(stats.num_used_blocks, 5);
}

TEST(EnginePipeline, SubmitsTheNextStepBeforeTheResultIsKnown) {
  FakeEngine engine = make_fake_engine({.pipeline_depth = 1});
  engine.core->add_request(prompt_of(5), greedy(4));
  EXPECT_EQ(engine.core->step().size(), 1u);
  EXPECT_EQ(engine.runner->num_steps, 2);
  run(*engine.core);
  EXPECT_EQ(engine.runner->num_steps, 4);  // an end by length is known ahead: no surplus
}

TEST(EnginePipeline, DropsTheTokenSampledAfterAStop) {
  const Ids expected = greedy_tokens(prompt_of(5), 4);
  FakeEngine engine = make_fake_engine({.pipeline_depth = 1, .eos_token_ids = {expected[1]}});
  SamplingParams params = greedy(20);
  params.ignore_eos = false;
  const RequestOutput output = run_one(*engine.core, prompt_of(5), params);
  EXPECT_EQ(output.outputs[0].token_ids, Ids(expected.begin(), expected.begin() + 2));
  EXPECT_EQ(engine.runner->num_steps, 3);  // one step late
  // The step that is still in flight harms nobody, and nobody is shown it.
  engine.core->add_request(prompt_of(6, 40), greedy(1));
  EXPECT_EQ(engine.core->step().size(), 1u);
  EXPECT_TRUE(engine.core->is_finished());
  EXPECT_EQ(run_one(*engine.core, prompt_of(7, 30), greedy(5)).outputs[0].token_ids,
            greedy_tokens(prompt_of(7, 30), 5));
}

// The step that takes the younger one's blocks for the older one is dropped, as that one has ended.
TEST(EnginePipeline, PreemptionsOfADroppedStepAreToldWithTheNextOne) {
  const Ids expected = greedy_tokens(prompt_of(7), 1);
  FakeEngine engine = make_fake_engine({.num_blocks = 4, .pipeline_depth = 1});
  SamplingParams params = greedy(9);
  params.stop_token_ids = {expected[0]};
  engine.core->add_request(prompt_of(7), params);
  const uint64_t id = engine.core->add_request(prompt_of(8, 20), greedy(5));
  int num_preemptions = 0, last = 0;
  while (!engine.core->is_finished()) {
    for (const RequestOutput& output : engine.core->step()) {
      if (output.request_id == id) last = output.num_preemptions;
    }
    num_preemptions += engine.core->last_step().num_preemptions;
  }
  EXPECT_EQ(last, 1);
  EXPECT_EQ(num_preemptions, 1);
}

TEST_P(Engine, PreemptionsOfAStepThatFailedAreToldWithTheNextOne) {
  for (const int failing_step : {1, 2, 3, 4}) {
    FakeEngine engine = make({.num_blocks = 4});
    engine.runner->fail_at_step = failing_step;
    engine.core->add_request(prompt_of(7), greedy(8));
    engine.core->add_request(prompt_of(8, 20), greedy(5));
    int num_preemptions = 0;
    while (!engine.core->is_finished()) {
      try {
        engine.core->step();
        num_preemptions += engine.core->last_step().num_preemptions;
      } catch (const Error&) {
      }
    }
    EXPECT_GE(num_preemptions, 1) << failing_step;
  }
}

// The first completion gives its blocks back while the step that samples its only token runs.
TEST(EnginePipeline, CompletionsRunWhenTheFirstOneEndsAfterItWasPreempted) {
  FakeEngine engine = make_fake_engine({.num_blocks = 3, .pipeline_depth = 1});
  engine.core->add_request(prompt_of(4), greedy(3));
  SamplingParams params = random(1, 5);
  params.n = 2;
  const uint64_t id = engine.core->add_request(prompt_of(8, 20), params);
  const auto outputs = run(*engine.core);
  EXPECT_EQ(outputs.at(id).num_preemptions, 1);
  for (const CompletionOutput& completion : outputs.at(id).outputs) {
    EXPECT_EQ(completion.token_ids.size(), 1u);
    EXPECT_EQ(completion.finish_reason, FinishReason::kLength);
  }
}

}  // namespace
}  // namespace nanovllm
