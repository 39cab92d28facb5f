// What steps are expected to take, by figures alone.
#include "runner/step_cost.h"

#include <gtest/gtest.h>

#include <limits>

namespace nanovllm {
namespace {

constexpr DeviceSpeed kH100 = {.flops = 989e12, .attention_flops = 989e12, .bytes = 3.35e12};

// Of Qwen3-8B's 36 layers: 6.95e9 weights, 32 heads of 128, 8 KV heads.
constexpr StackWork kQwen3Of8B = {.flops_per_token = 2 * 6.95e9,
                                  .flops_per_seen_token = 36.0 * 4 * 32 * 128,
                                  .kv_bytes_per_seen_token = 36.0 * 2 * 8 * 128 * 2};

TEST(StepCost, AddsUpTokensAndWhatTheySee) {
  const StepCost cost = {.per_token = 2, .per_pair = 0.5, .per_seen_token = 0};
  EXPECT_EQ(cost.seconds(1, 0), 2 + 0.5);
  EXPECT_EQ(cost.seconds(1, 9), 2 + 0.5 * 10);
  EXPECT_EQ(cost.seconds(3, 10), 6 + 0.5 * (11 + 12 + 13));
  const StepCost reading = {.per_token = 2, .per_pair = 0.5, .per_seen_token = 1};
  EXPECT_EQ(reading.seconds(1, 9), 2 + 10);  // one token waits for the memory
  EXPECT_EQ(reading.seconds(3, 10), 6 + 0.5 * (11 + 12 + 13));
}

TEST(StepCost, AsManyTokensAsTheTimeLetsAndNotOneMore) {
  for (const StepCost& cost : {StepCost{.per_token = 1e-3},
                               {.per_pair = 1e-6},
                               {.per_token = 1e-3, .per_pair = 1e-6},
                               {.per_token = 1e-5, .per_pair = 1e-8, .per_seen_token = 1e-6},
                               step_cost(kQwen3Of8B, kH100)}) {
    for (const int context : {0, 1, 1000, 30'000}) {
      for (const double seconds : {0.05, 0.1, 0.5, 3.0}) {
        const int most = cost.most_tokens(seconds, context);
        EXPECT_LE(cost.seconds(most, context), seconds * (1 + 1e-9));
        EXPECT_GT(cost.seconds(most + 1, context), seconds);
      }
    }
  }
}

TEST(StepCost, NothingCostsNothing) {
  EXPECT_EQ(StepCost().most_tokens(0.1, 5), std::numeric_limits<int>::max());
  const StepCost cost = {.per_token = 1, .per_pair = 1, .per_seen_token = 1};
  EXPECT_EQ(cost.most_tokens(0, 5), 0);
  EXPECT_EQ(cost.most_tokens(-1, 5), 0);
  EXPECT_EQ(cost.most_tokens(1, 5), 0);
}

// A tenth of a second of prompts: 4,000 tokens without a context, half as many behind 32,000.
TEST(StepCost, OfAGpuFollowsFromItsFigures) {
  const StepCost cost = step_cost(kQwen3Of8B, kH100);
  EXPECT_FALSE(cost.is_guess);
  EXPECT_EQ(cost, step_cost(kQwen3Of8B, kH100));
  EXPECT_NEAR(cost.per_token, 23e-6, 1e-6);
  EXPECT_NEAR(cost.most_tokens(0.1, 0), 3900, 200);
  EXPECT_NEAR(cost.most_tokens(0.1, 32'000), 1600, 150);
  // 64 requests that decode behind 4,000 tokens wait for 38 GB of keys and values.
  EXPECT_NEAR(64 * cost.seconds(1, 4000), 0.0155, 0.001);
}

// In float32 products run without tensor cores, and attention in a kernel that is slower still.
TEST(StepCost, OfFloat32IsSeveralTimesThatOfBfloat16) {
  const StepCost bfloat16 = step_cost(kQwen3Of8B, kH100);
  const StepCost float32 =
      step_cost(kQwen3Of8B, {.flops = 67e12, .attention_flops = 4e12, .bytes = kH100.bytes});
  EXPECT_NEAR(float32.per_token / bfloat16.per_token, 989.0 / 67, 0.01);
  EXPECT_NEAR(float32.per_pair / bfloat16.per_pair, 989.0 / 4, 0.01);
  EXPECT_EQ(float32.per_seen_token, bfloat16.per_seen_token);
}

TEST(StepCost, WindowsAreAttentionsAndTakeItsSpeed) {
  const StackWork work = {.flops_per_token = 100, .window_flops_per_token = 10};
  const DeviceSpeed speed = {.flops = 1000, .attention_flops = 10, .bytes = 1};
  EXPECT_DOUBLE_EQ(step_cost(work, speed).per_token, 100 / 600.0 + 10 / 5.0);
  EXPECT_DOUBLE_EQ(guessed_step_cost(work).per_token,
                   guessed_step_cost({.flops_per_token = 110}).per_token);
}

// Some drivers tell no clock of the memory.
TEST(StepCost, WhereTheMemorysSpeedIsUntoldReadingCostsNothing) {
  DeviceSpeed speed = kH100;
  speed.bytes = 0;
  const StepCost cost = step_cost(kQwen3Of8B, speed);
  EXPECT_EQ(cost.per_seen_token, 0);
  EXPECT_EQ(cost.seconds(1, 4000), cost.per_token + 4001 * cost.per_pair);
  EXPECT_EQ(step_cost({.flops_per_token = 1}, speed).per_seen_token, 0);
}

// What a GPU's steps take is never learned: other chunks may give other last bits.
TEST(StepCost, AGpuThatTellsNothingIsTakenToBeSlowAndNotToBeLearned) {
  const StepCost cost = step_cost(kQwen3Of8B, {});
  EXPECT_FALSE(cost.is_guess);
  EXPECT_GT(cost.per_token, 10 * step_cost(kQwen3Of8B, kH100).per_token);
  EXPECT_NEAR(cost.most_tokens(0.1, 0), 86, 5);
}

TEST(StepCost, OfACpuIsAGuessInTheRightProportion) {
  const StepCost cost = guessed_step_cost(kQwen3Of8B);
  EXPECT_TRUE(cost.is_guess);
  EXPECT_DOUBLE_EQ(cost.per_token / cost.per_pair,
                   kQwen3Of8B.flops_per_token / kQwen3Of8B.flops_per_seen_token);
}

}  // namespace
}  // namespace nanovllm
