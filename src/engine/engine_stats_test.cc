// What metrics are made of: the counts of steps, the times of requests, and what observers hear.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "engine/engine_test_support.h"

namespace nanovllm {
namespace {

class EngineStats : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(PipelineDepth, EngineStats, ::testing::Values(0, 1));

// The counters of all steps until the engine is finished.
StepStats total_of(EngineCore& core) {
  StepStats total;
  for (int i = 0; i < 1000 && !core.is_finished(); ++i) {
    core.step();
    const StepStats& step = core.last_step();
    total.num_preemptions += step.num_preemptions;
    total.num_prompt_tokens += step.num_prompt_tokens;
    total.num_generation_tokens += step.num_generation_tokens;
    total.num_prefix_cache_queries += step.num_prefix_cache_queries;
    total.num_prefix_cache_hits += step.num_prefix_cache_hits;
  }
  EXPECT_TRUE(core.is_finished());
  return total;
}

TEST_P(EngineStats, CountEachPromptAndEachTokenOnceWhateverIsComputedAgain) {
  FakeEngine engine = make_fake_engine({.num_blocks = 5, .pipeline_depth = GetParam()});
  engine.core->add_request(prompt_of(6), greedy(9));
  engine.core->add_request(prompt_of(6, 20), greedy(9));
  const StepStats total = total_of(*engine.core);
  EXPECT_EQ(total.num_preemptions, 1);
  EXPECT_EQ(total.num_prompt_tokens, 12);
  EXPECT_EQ(total.num_generation_tokens, 18);
  EXPECT_EQ(total.num_prefix_cache_queries, 12);  // what is let in again does not ask again
  EXPECT_EQ(total.num_prefix_cache_hits, 0);
  EXPECT_GT(engine.runner->num_computed_tokens, 12 + 18 - 2);
}

TEST_P(EngineStats, CountWhatTheCacheIsAskedForAndHolds) {
  FakeEngine engine = make_fake_engine({.pipeline_depth = GetParam()});
  for (const int64_t hits : {0, 15}) {  // of 16, as one token is always computed
    engine.core->add_request(prompt_of(16), greedy(2));
    const StepStats total = total_of(*engine.core);
    EXPECT_EQ(total.num_prefix_cache_queries, 16);
    EXPECT_EQ(total.num_prefix_cache_hits, hits);
    EXPECT_EQ(total.num_prompt_tokens, 16);
  }
  SamplingParams params = greedy(2);
  params.prompt_logprobs = 1;  // takes nothing from the cache
  engine.core->add_request(prompt_of(16), params);
  EXPECT_EQ(total_of(*engine.core).num_prefix_cache_queries, 0);
}

TEST_P(EngineStats, CountNoQueriesWithoutAPrefixCache) {
  FakeEngine engine =
      make_fake_engine({.pipeline_depth = GetParam(), .enable_prefix_caching = false});
  engine.core->add_request(prompt_of(16), greedy(2));
  EXPECT_EQ(total_of(*engine.core).num_prefix_cache_queries, 0);
}

// Sequences wait for a state while most blocks are free.
TEST_P(EngineStats, TellOfSequencesThatHaveStates) {
  FakeEngine engine = make_fake_engine(
      {.pipeline_depth = GetParam(), .states = {.num_slots = 4, .num_logs = 2, .chunk = 4}});
  for (int32_t first : {1, 20, 40}) engine.core->add_request(prompt_of(5, first), greedy(3));
  engine.core->step();
  const StepStats& step = engine.core->last_step();
  EXPECT_EQ(step.num_used_states, 2);
  EXPECT_EQ(step.num_total_states, 2);
  EXPECT_EQ(step.num_waiting, 1);
  while (!engine.core->is_finished()) engine.core->step();
  EXPECT_EQ(step.num_used_states, 1);
}

TEST_P(EngineStats, TimesFollowEachOther) {
  FakeEngine engine = make_fake_engine({.max_num_seqs = 1, .pipeline_depth = GetParam()});
  engine.core->add_request(prompt_of(5), greedy(3));
  engine.core->add_request(prompt_of(5, 20), greedy(3));
  const auto outputs = run(*engine.core);
  const RequestMetrics& first = outputs.at(0).metrics;
  const RequestMetrics& second = outputs.at(1).metrics;
  for (const RequestMetrics& times : {first, second}) {
    EXPECT_GT(times.time_to_first_step, 0);
    EXPECT_GT(times.time_to_first_token, times.time_to_first_step);
    EXPECT_GT(times.time_to_last_token, times.time_to_first_token);
    EXPECT_GE(times.time_to_finish, times.time_to_last_token);
    EXPECT_EQ(times.queue_time(), times.time_to_first_step);
    EXPECT_GT(times.prefill_time(), 0);
    EXPECT_GT(times.decode_time(), 0);
    EXPECT_DOUBLE_EQ(times.inference_time(), times.time_to_last_token - times.time_to_first_step);
  }
  EXPECT_GT(second.queue_time(), first.decode_time());
}

TEST_P(EngineStats, WhatNeverRanHasNoTimesButItsEnd) {
  FakeEngine engine = make_fake_engine({.pipeline_depth = GetParam()});
  engine.core->abort_request(engine.core->add_request(prompt_of(5), greedy(3)));
  const RequestMetrics times = run(*engine.core).at(0).metrics;
  EXPECT_EQ(times.time_to_first_step, 0);
  EXPECT_EQ(times.prefill_time(), 0);
  EXPECT_EQ(times.inference_time(), 0);
  EXPECT_GT(times.time_to_finish, 0);
}

// Writes down what it hears for whoever outlives it.
class Listener : public EngineObserver {
 public:
  struct Notes {
    std::vector<std::pair<uint64_t, Phase>> phases;  // that were entered
    std::vector<StepStats> steps;
    Clock::time_point last = {};
    bool finished = false;
  };
  explicit Listener(Notes& notes) : notes_(notes) {}

  void on_phase(uint64_t request_id, int index, Phase from, Phase to,
                Clock::time_point now) noexcept override {
    EXPECT_EQ(index, 0);
    EXPECT_EQ(from, std::exchange(phases_[request_id], to));
    EXPECT_NE(from, to);
    EXPECT_GE(now, std::exchange(notes_.last, now));
    notes_.phases.emplace_back(request_id, to);
  }
  void on_step(Clock::time_point begin, Clock::time_point end, const StepStats& stats,
               std::span<const ScheduledRequest> scheduled) noexcept override {
    EXPECT_LT(begin, end);
    EXPECT_FALSE(scheduled.empty());
    notes_.steps.push_back(stats);
  }
  bool finish() override {
    notes_.finished = true;
    return false;
  }

 private:
  Notes& notes_;
  std::map<uint64_t, Phase> phases_;
};

TEST_P(EngineStats, ObserversHearStepsAndPhases) {
  Listener::Notes notes;
  FakeEngine engine =
      make_fake_engine({.pipeline_depth = GetParam()}, nullptr, std::make_unique<Listener>(notes));
  engine.core->add_request(prompt_of(5), greedy(3));
  const uint64_t aborted = engine.core->add_request(prompt_of(5), greedy(3));
  engine.core->abort_request(aborted);
  std::vector<StepStats> steps;
  while (!engine.core->is_finished()) {
    engine.core->step();
    steps.push_back(engine.core->last_step());
  }
  using enum Phase;
  EXPECT_EQ(notes.phases,
            (std::vector<std::pair<uint64_t, Phase>>{
                {0, kQueued}, {1, kQueued}, {1, kNone}, {0, kPrefill}, {0, kDecode}, {0, kNone}}));
  EXPECT_EQ(notes.steps, steps);
  EXPECT_FALSE(notes.finished);
  engine.core->finish_trace();
  EXPECT_TRUE(notes.finished);
}

}  // namespace
}  // namespace nanovllm
