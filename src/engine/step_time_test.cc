// Steps that fit a person's patience: what is learned of their cost, and what goes into them.
#include "engine/step_time.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "engine/engine_test_support.h"

namespace nanovllm {
namespace {

constexpr StepCost kGuess = {.per_token = 1e-3, .per_pair = 1e-7, .is_guess = true};

// Steps of prompts in chunks, one after the other, which take what `cost` says.
class Steps {
 public:
  explicit Steps(const StepCost& cost) : cost_(cost) {}

  void run(StepCostLearner& learner, int count, double noise = 0, int context_end = 32'000) {
    for (int i = 0; i < count; ++i) {
      const int num_tokens = 32 + static_cast<int>(rng_() % 400);
      const int context = static_cast<int>(rng_() % static_cast<unsigned>(context_end));
      std::uniform_real_distribution<double> error(1 - noise, 1 + noise);
      learner.learn(num_tokens, StepCost::pairs(num_tokens, context),
                    cost_.seconds(num_tokens, context) * error(rng_));
    }
  }

 private:
  const StepCost cost_;
  std::mt19937 rng_{1};
};

TEST(StepCostLearner, FindsWhatATokenAndWhatItsContextCost) {
  const StepCost real = {.per_token = 8e-3, .per_pair = 3e-6};
  StepCostLearner learner(kGuess);
  EXPECT_EQ(learner.cost(), kGuess);
  Steps(real).run(learner, 200);
  EXPECT_NEAR(learner.cost().per_token / real.per_token, 1, 0.1);
  EXPECT_NEAR(learner.cost().per_pair / real.per_pair, 1, 0.02);
  Steps(real).run(learner, 200, 0.2);
  EXPECT_NEAR(learner.cost().seconds(100, 10'000) / real.seconds(100, 10'000), 1, 0.15);
  EXPECT_TRUE(learner.cost().is_guess);
}

// After ten steps or so, a machine that others use now is known for what it is.
TEST(StepCostLearner, FollowsAMachineThatGetsSlower) {
  const StepCost fast = {.per_token = 1e-3, .per_pair = 1e-7},
                 slow = {.per_token = 3e-3, .per_pair = 3e-7};
  StepCostLearner learner(kGuess);
  Steps(fast).run(learner, 50);
  Steps(slow).run(learner, 50);
  EXPECT_NEAR(learner.cost().per_token / slow.per_token, 1, 0.1);
}

TEST(StepCostLearner, ForgivesASingleStepThatSomethingHeldUp) {
  const StepCost real = {.per_token = 8e-3, .per_pair = 3e-6};
  StepCostLearner learner(kGuess);
  Steps(real).run(learner, 50);
  const double before = learner.cost().seconds(100, 1000);
  learner.learn(100, StepCost::pairs(100, 1000), 20 * real.seconds(100, 1000));
  EXPECT_NEAR(learner.cost().seconds(100, 1000) / before, 1, 0.15);
}

// What has never been seen is taken from the proportion of the guess: a prompt whose beginning is
// cached may start behind a long context.
TEST(StepCostLearner, TakesContextsThatItHasNotSeenFromTheGuess) {
  const StepCost real = {.per_token = 20e-3, .per_pair = 2e-6};  // 20 times the guess
  StepCostLearner learner(kGuess);
  Steps(real).run(learner, 20, 0.1, 100);
  EXPECT_NEAR(learner.cost().per_token / real.per_token, 1, 0.1);
  EXPECT_NEAR(learner.cost().per_pair / real.per_pair, 1, 0.3);
}

TEST(StepCostLearner, NothingCostsLessThanNothing) {
  StepCostLearner learner(kGuess);
  for (int i = 0; i < 20; ++i) {  // the longer the context, the shorter it takes
    learner.learn(100, 0, 1.0);
    learner.learn(100, 1e6, 0.1);
  }
  EXPECT_GE(learner.cost().per_token, 0);
  EXPECT_GE(learner.cost().per_pair, 0);
}

TEST(StepCostLearner, LearnsNothingFromStepsThatWaitForWeights) {
  StepCostLearner learner(kGuess);
  learner.learn(15, 15, 10.0);
  learner.learn(100, 100, 0.0);
  EXPECT_EQ(learner.cost(), kGuess);
  learner.learn(16, 16, 10.0);
  EXPECT_NE(learner.cost(), kGuess);
}

TEST(StepTime, SuitsTheDeviceUnlessSomebodySaysOtherwise) {
  EXPECT_EQ(make_step_time(-1, {.is_guess = true}).most_seconds, 0.5);
  EXPECT_EQ(make_step_time(-1, {.is_guess = false}).most_seconds, 0.1);
  EXPECT_EQ(make_step_time(0.2, {.is_guess = false}).most_seconds, 0.2);
  EXPECT_EQ(make_step_time(0, {.is_guess = true}).most_seconds, 0);
}

std::vector<int> new_tokens(const EngineCore& core, bool decode) {
  std::vector<int> counts;
  for (const ScheduledRequest& part : core.last_schedule()) {
    if (part.decode == decode) counts.push_back(part.num_new_tokens);
  }
  return counts;
}

FakeEngineOptions bounded(double max_step_seconds, const StepCost& cost) {
  return {.num_blocks = 1000,
          .vocab_size = 5000,
          .max_model_len = 2000,
          .max_num_batched_tokens = 500,
          .max_step_seconds = max_step_seconds,
          .step_cost = cost};
}

// A token costs a hundredth of a second: 50 fit, decodes among them.
TEST(StepTime, BoundsPromptsBesideDecodesAndNoOthers) {
  FakeEngine engine = make_fake_engine(bounded(0.505, {.per_token = 0.01}));
  EngineCore& core = *engine.core;
  core.add_request(prompt_of(600), greedy(3));
  core.step();
  EXPECT_EQ(new_tokens(core, false), (std::vector<int>{500}));  // nobody waits
  core.step();
  EXPECT_EQ(new_tokens(core, false), (std::vector<int>{100}));
  core.add_request(prompt_of(600, 2), greedy(1));
  core.step();
  EXPECT_EQ(new_tokens(core, true), (std::vector<int>{1}));
  EXPECT_EQ(new_tokens(core, false), (std::vector<int>{49}));
  core.step();
  EXPECT_EQ(new_tokens(core, false), (std::vector<int>{49}));
  core.step();  // the first has ended
  EXPECT_EQ(new_tokens(core, false), (std::vector<int>{500}));
}

TEST(StepTime, NeverTakesMoreTokensThanAStepMayHave) {
  FakeEngine engine = make_fake_engine(bounded(1000, {.per_token = 0.01}));
  EngineCore& core = *engine.core;
  core.add_request(prompt_of(5), greedy(10));
  core.step();
  core.add_request(prompt_of(600, 2), greedy(1));
  core.step();
  EXPECT_EQ(new_tokens(core, false), (std::vector<int>{499}));
}

// However slow the machine is, whoever waits for a first token gets on: with a quarter of the time
// and with as many tokens as take no longer than one.
TEST(StepTime, PromptsAlwaysGetOn) {
  FakeEngine slow = make_fake_engine(bounded(0.1, {.per_token = 10}));
  slow.core->add_request(prompt_of(5), greedy(50));
  slow.core->step();
  slow.core->add_request(prompt_of(40, 2), greedy(1));
  for (const int count : {16, 16, 8}) {
    slow.core->step();
    EXPECT_EQ(new_tokens(*slow.core, false), (std::vector<int>{count}));
  }
  FakeEngine busy = make_fake_engine(bounded(0.1, {.per_token = 0.001, .per_seen_token = 0.1}));
  busy.core->add_request(prompt_of(5), greedy(50));
  busy.core->step();
  busy.core->add_request(prompt_of(40, 2), greedy(1));
  busy.core->step();  // the decode alone takes six times the bound
  EXPECT_EQ(new_tokens(*busy.core, false), (std::vector<int>{16}));
  FakeEngine long_decodes = make_fake_engine(bounded(0.4, {.per_token = 0.001, .per_pair = 0.001}));
  for (int i = 0; i < 8; ++i) long_decodes.core->add_request(prompt_of(60, i), greedy(50));
  long_decodes.core->step();
  long_decodes.core->add_request(prompt_of(200, 9), greedy(1));
  long_decodes.core->step();  // n + n (n + 1) / 2 <= 100 of the quarter would be 12
  EXPECT_EQ(new_tokens(*long_decodes.core, true).size(), 8u);
  EXPECT_EQ(new_tokens(*long_decodes.core, false), (std::vector<int>{16}));
}

// A later prompt gets what an earlier one leaves.
TEST(StepTime, SeveralPromptsShareTheTimeInOrder) {
  FakeEngine engine = make_fake_engine(bounded(0.505, {.per_token = 0.01}));
  EngineCore& core = *engine.core;
  core.add_request(prompt_of(5), greedy(50));
  core.step();
  for (int i = 0; i < 4; ++i) core.add_request(prompt_of(20, i + 2), greedy(50));
  core.step();
  EXPECT_EQ(new_tokens(core, false), (std::vector<int>{20, 20, 16}));
  core.step();
  EXPECT_EQ(new_tokens(core, false), (std::vector<int>{4, 20}));
}

// The fake runner takes a millisecond a token, or more on a loaded machine, and is believed to take
// a thousandth of that.
TEST(StepTime, IsKeptByWhatStepsReallyTake) {
  FakeEngine engine =
      make_fake_engine(bounded(0.1, {.per_token = 1e-6, .per_pair = 0, .is_guess = true}));
  engine.runner->time_per_token = std::chrono::milliseconds(1);
  EngineCore& core = *engine.core;
  core.add_request(prompt_of(20), greedy(100));
  core.step();  // from which it learns
  const double per_token = core.last_step().seconds / 20;
  core.add_request(prompt_of(450, 2), greedy(1));
  core.step();
  const int count = core.last_step().num_prefill_tokens;
  EXPECT_LE(count, 99);
  // Beside the token of the decode, or in the quarter that prompts have in any case.
  const double seconds = std::max(0.1 - per_token, 0.025);
  EXPECT_NEAR(count, std::max(std::floor(seconds / per_token), 16.0), 1);
}

// Where the device's figures say what steps cost, a slow clock changes nothing.
TEST(StepTime, DependsOnNoClockWhereFiguresSayIt) {
  FakeEngine engine = make_fake_engine(bounded(0.1, {.per_token = 1e-3}));
  engine.runner->time_per_token = std::chrono::milliseconds(3);
  EngineCore& core = *engine.core;
  core.add_request(prompt_of(20), greedy(100));
  core.step();
  core.add_request(prompt_of(300, 2), greedy(1));
  for (int i = 0; i < 2; ++i) {
    core.step();
    EXPECT_NEAR(core.last_step().num_prefill_tokens, 99, 1);
  }
}

}  // namespace
}  // namespace nanovllm
