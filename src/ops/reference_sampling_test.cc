// The reference itself, against numbers worked out by hand.
#include "ops/reference_sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace nanovllm {
namespace {

const std::vector<float> kLogits = {std::log(1.0f), std::log(4.0f), std::log(3.0f), std::log(2.0f)};

void expect_probabilities(const SamplingRow& row, const std::vector<double>& expected) {
  const std::vector<double> p = reference_probabilities(row, kLogits);
  ASSERT_EQ(p.size(), expected.size());
  for (size_t id = 0; id < p.size(); ++id) EXPECT_NEAR(p[id], expected[id], 1e-6) << id;
}

TEST(ReferenceSampling, ProbabilitiesOfWhatIsKeptAreScaledToOne) {
  expect_probabilities({}, {0.1, 0.4, 0.3, 0.2});
  expect_probabilities({.temperature = 0.5f}, {1 / 30.0, 16 / 30.0, 9 / 30.0, 4 / 30.0});
  expect_probabilities({.top_k = 2}, {0, 4 / 7.0, 3 / 7.0, 0});
  expect_probabilities({.top_p = 0.75f}, {0, 4 / 9.0, 3 / 9.0, 2 / 9.0});
  expect_probabilities({.top_p = 0.65f}, {0, 4 / 7.0, 3 / 7.0, 0});
  expect_probabilities({.min_p = 0.45f}, {0, 4 / 9.0, 3 / 9.0, 2 / 9.0});
  expect_probabilities({.top_p = 0.5f, .top_k = 2}, {0, 1, 0, 0});
}

TEST(ReferenceSampling, EditsComeInVllmsOrder) {
  const std::vector<int32_t> prompt = {0, 1};
  const std::vector<int32_t> output = {1, 1, 2};
  const std::vector<std::pair<int32_t, float>> bias = {{0, 1.0f}};
  const std::vector<int32_t> banned = {3};
  const SamplingRow row{.repetition_penalty = 2,
                        .presence_penalty = 0.5f,
                        .frequency_penalty = 0.25f,
                        .prompt_ids = prompt,
                        .output_ids = output,
                        .logit_bias = bias,
                        .banned_ids = banned};
  const std::vector<float> logits = {3, 4, -1, 9};
  const std::vector<double> expected = {(3.0 + 1) / 2, 4.0 / 2 - 2 * 0.25 - 0.5, -2 - 0.25 - 0.5,
                                        -std::numeric_limits<double>::infinity()};
  EXPECT_EQ(reference_edit_logits(row, logits), expected);
}

TEST(ReferenceSampling, LogprobsAreRawAndRanked) {
  const SamplingResult result =
      reference_sample({.temperature = 0, .num_logprobs = 3, .forced_id = 2}, kLogits);
  EXPECT_EQ(result.token_id, 2);
  ASSERT_EQ(result.logprobs.size(), 3U);
  EXPECT_EQ(result.logprobs[0].rank, 2);
  EXPECT_NEAR(result.logprobs[0].logprob, std::log(0.3), 1e-6);
  EXPECT_EQ(result.logprobs[1].token_id, 1);
  EXPECT_EQ(result.logprobs[2].token_id, 3);
  EXPECT_EQ(result.logprobs[2].rank, 3);
}

}  // namespace
}  // namespace nanovllm
