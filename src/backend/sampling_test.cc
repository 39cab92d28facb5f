// What each parameter of SamplingRow means, on both sides of its limits.
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>

#include "backend/sampling_test_support.h"

namespace nanovllm::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Ids = std::vector<int32_t>;
using Bias = std::vector<std::pair<int32_t, float>>;

// The size of the blocks that backends divide a row into.
constexpr int kBlock = 128;

class SamplingTest : public SamplingBackendTest {
 protected:
  SamplingResult sample(const SamplingRow& row, const std::vector<float>& logits) {
    return sample_row(*backend_, row, logits);
  }
  int32_t greedy(SamplingRow row, const std::vector<float>& logits) {
    row.temperature = 0;
    return sample(row, logits).token_id;
  }
  // Every token that comes up in so many draws that one of probability 0.005 is missed less than
  // once in 10^8.
  std::set<int32_t> drawn(const SamplingRow& row, const std::vector<float>& logits) {
    const std::vector<int32_t> ids = draws(*backend_, row, logits, 4000);
    return {ids.begin(), ids.end()};
  }
};

TEST_P(SamplingTest, GreedyTakesTheLargestAndTheSmallestIdAmongEquals) {
  for (const size_t n : {1, 2, 127, 128, 129, 5000}) {
    std::vector<float> logits(n, -1);
    EXPECT_EQ(greedy({}, logits), 0);
    logits[n - 1] = 2;
    EXPECT_EQ(greedy({}, logits), static_cast<int32_t>(n - 1));
    logits[n / 2] = 2;
    EXPECT_EQ(greedy({}, logits), static_cast<int32_t>(n / 2));
  }
}

TEST_P(SamplingTest, TemperatureIsGreedyBelowItsLimitOnly) {
  const std::vector<float> equal = {0, 0, 0};
  EXPECT_EQ(drawn({.temperature = 0}, equal), (std::set<int32_t>{0}));
  EXPECT_EQ(drawn({.temperature = std::nextafter(kGreedyTemperature, 0.0f)}, equal),
            (std::set<int32_t>{0}));
  EXPECT_EQ(drawn({.temperature = kGreedyTemperature}, equal), (std::set<int32_t>{0, 1, 2}));
  // The smallest temperature leaves nothing to what is a little less likely; the largest makes all
  // equal.
  EXPECT_EQ(drawn({.temperature = kGreedyTemperature}, {0, 0.01f, 0}), (std::set<int32_t>{1}));
  EXPECT_EQ(drawn({.temperature = 1e30f}, {0, 80, -80}), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(drawn({.temperature = 1e30f}, {0, 80, -kInfinity}), (std::set<int32_t>{0, 1}));
}

TEST_P(SamplingTest, TopKKeepsKTokens) {
  const std::vector<float> logits = {1, 4, 2, 3, 0};
  EXPECT_EQ(drawn({.top_k = 1}, logits), (std::set<int32_t>{1}));
  EXPECT_EQ(drawn({.top_k = 2}, logits), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(drawn({.top_k = 4}, logits), (std::set<int32_t>{0, 1, 2, 3}));
  const std::set<int32_t> all = {0, 1, 2, 3, 4};
  EXPECT_EQ(drawn({.top_k = 5}, logits), all);
  EXPECT_EQ(drawn({.top_k = 6}, logits), all);
  EXPECT_EQ(drawn({.top_k = 0}, logits), all);
}

TEST_P(SamplingTest, TopKKeepsAllEqualsOfTheKth) {
  EXPECT_EQ(drawn({.top_k = 2}, {1, 3, 1, 1, 0}), (std::set<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(drawn({.top_k = 1}, {1, 3, 3, 1, 0}), (std::set<int32_t>{1, 2}));
}

TEST_P(SamplingTest, TopKFindsTheKthOnBothSidesOfTheNumberOfBlocks) {
  // 10 blocks of logits 0 .. n-1, shuffled; the tokens of the 3 largest sit in one block or in
  // many.
  constexpr int kSize = 10 * kBlock;
  std::vector<float> logits(kSize);
  for (int i = 0; i < kSize; ++i) logits[i] = static_cast<float>(i * 37 % kSize);
  for (const int k : {1, 3, 9, 10, 11, 100}) {
    const std::set<int32_t> ids = drawn({.temperature = 1e6f, .top_k = k}, logits);
    EXPECT_EQ(ids.size(), static_cast<size_t>(k));
    for (const int32_t id : ids) EXPECT_GE(logits[id], static_cast<float>(kSize - k));
  }
}

TEST_P(SamplingTest, TopPKeepsTheFewestThatReachIt) {
  const std::vector<float> logits = logits_of({0.2, 0.5, 0.3});
  EXPECT_EQ(drawn({.top_p = 1e-9f}, logits), (std::set<int32_t>{1}));
  EXPECT_EQ(drawn({.top_p = 0.499f}, logits), (std::set<int32_t>{1}));
  EXPECT_EQ(drawn({.top_p = 0.501f}, logits), (std::set<int32_t>{1, 2}));
  EXPECT_EQ(drawn({.top_p = 0.799f}, logits), (std::set<int32_t>{1, 2}));
  EXPECT_EQ(drawn({.top_p = 0.801f}, logits), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(drawn({.top_p = std::nextafter(1.0f, 0.0f)}, logits), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(drawn({.top_p = 1}, logits), (std::set<int32_t>{0, 1, 2}));
}

TEST_P(SamplingTest, TopPKeepsSmallerIdsAmongEquals) {
  std::vector<float> equal(2 * kBlock, -kInfinity);
  for (const int id : {3, 100, 130, 200}) equal[id] = 7;
  EXPECT_EQ(drawn({.top_p = 0.25f}, equal), (std::set<int32_t>{3}));
  EXPECT_EQ(drawn({.top_p = 0.26f}, equal), (std::set<int32_t>{3, 100}));
  EXPECT_EQ(drawn({.top_p = 0.5f}, equal), (std::set<int32_t>{3, 100}));
  EXPECT_EQ(drawn({.top_p = 0.75f}, equal), (std::set<int32_t>{3, 100, 130}));
  EXPECT_EQ(drawn({.top_p = 0.76f}, equal), (std::set<int32_t>{3, 100, 130, 200}));
}

TEST_P(SamplingTest, TopPCountsAmongWhatTopKAndMinPLeft) {
  const std::vector<float> logits = logits_of({0.4, 0.3, 0.2, 0.1});
  // Of {0.4, 0.3} the first has 0.571.
  EXPECT_EQ(drawn({.top_p = 0.57f, .top_k = 2}, logits), (std::set<int32_t>{0}));
  EXPECT_EQ(drawn({.top_p = 0.58f, .top_k = 2}, logits), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(drawn({.top_p = 0.57f, .min_p = 0.6f}, logits), (std::set<int32_t>{0}));
  EXPECT_EQ(drawn({.top_p = 0.58f, .min_p = 0.6f}, logits), (std::set<int32_t>{0, 1}));
}

TEST_P(SamplingTest, MinPKeepsWhatIsLikelyBesideTheLikeliest) {
  const std::vector<float> logits = logits_of({0.2, 0.4, 0.4});
  EXPECT_EQ(drawn({.min_p = 0}, logits), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(drawn({.min_p = 0.499f}, logits), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(drawn({.min_p = 0.501f}, logits), (std::set<int32_t>{1, 2}));
  EXPECT_EQ(drawn({.min_p = 1}, logits), (std::set<int32_t>{1, 2}));
  // Temperature comes first: at 2 the ratio 1/2 is 0.707.
  EXPECT_EQ(drawn({.temperature = 2, .min_p = 0.7f}, logits), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(drawn({.temperature = 2, .min_p = 0.71f}, logits), (std::set<int32_t>{1, 2}));
}

TEST_P(SamplingTest, RepetitionPenaltyDividesPositiveAndMultipliesNegativeLogits) {
  const Ids prompt = {0};
  EXPECT_EQ(greedy({.repetition_penalty = 1.9f, .prompt_ids = prompt}, {2, 1}), 0);
  EXPECT_EQ(greedy({.repetition_penalty = 2.1f, .prompt_ids = prompt}, {2, 1}), 1);
  EXPECT_EQ(greedy({.repetition_penalty = 1.9f, .prompt_ids = prompt}, {-1, -2}), 0);
  EXPECT_EQ(greedy({.repetition_penalty = 2.1f, .prompt_ids = prompt}, {-1, -2}), 1);
  // Once, however often the token occurs, and for tokens of the output as well.
  const Ids output = {0, 0, 0};
  EXPECT_EQ(
      greedy({.repetition_penalty = 1.9f, .prompt_ids = prompt, .output_ids = output}, {2, 1}), 0);
  EXPECT_EQ(greedy({.repetition_penalty = 2.1f, .output_ids = output}, {2, 1}), 1);
  // Below 1 it rewards.
  EXPECT_EQ(greedy({.repetition_penalty = 0.4f, .prompt_ids = prompt}, {1, 2}), 0);
}

TEST_P(SamplingTest, PresenceAndFrequencyPenaltiesCountTheOutputOnly) {
  const Ids ids = {0, 0, 0};
  EXPECT_EQ(greedy({.presence_penalty = 0.9f, .output_ids = ids}, {2, 1}), 0);
  EXPECT_EQ(greedy({.presence_penalty = 1.1f, .output_ids = ids}, {2, 1}), 1);
  EXPECT_EQ(greedy({.frequency_penalty = 0.3f, .output_ids = ids}, {2, 1}), 0);
  EXPECT_EQ(greedy({.frequency_penalty = 0.4f, .output_ids = ids}, {2, 1}), 1);
  EXPECT_EQ(greedy({.presence_penalty = 2, .frequency_penalty = 2, .prompt_ids = ids}, {2, 1}), 0);
  EXPECT_EQ(greedy({.presence_penalty = -1.1f, .output_ids = ids}, {1, 2}), 0);
  EXPECT_EQ(greedy({.frequency_penalty = -0.4f, .output_ids = ids}, {1, 2}), 0);
}

TEST_P(SamplingTest, PenaltiesFollowBiasAndLeaveNothingBehind) {
  // (1 + 3) / 2 = 2 < 2.5, whereas 1 / 2 + 3 would win.
  const Bias bias = {{0, 3.0f}};
  const Ids prompt = {0};
  EXPECT_EQ(greedy({.repetition_penalty = 2, .prompt_ids = prompt, .logit_bias = bias}, {1, 2.5f}),
            1);
  const Ids output = {0, 0};
  EXPECT_EQ(greedy({.frequency_penalty = 0.9f, .output_ids = output}, {2, 0}), 0);
  EXPECT_EQ(greedy({.frequency_penalty = 0.9f, .output_ids = output}, {2, 0}), 0);
}

TEST_P(SamplingTest, LogitBiasAddsAndBannedTokensNeverCome) {
  const Bias up = {{2, 100.0f}};
  const Bias down = {{0, -100.0f}};
  EXPECT_EQ(greedy({.logit_bias = up}, {3, 2, 1}), 2);
  EXPECT_EQ(greedy({.logit_bias = down}, {3, 2, 1}), 1);
  const Ids banned = {0, 2};
  EXPECT_EQ(drawn({.banned_ids = banned}, {3, 2, 1}), (std::set<int32_t>{1}));
  EXPECT_EQ(drawn({.logit_bias = up, .banned_ids = banned}, {3, 2, 1}), (std::set<int32_t>{1}));
}

TEST_P(SamplingTest, OnlyAllowedTokensAreDrawn) {
  const std::vector<float> logits = normal_logits(70, 3, 2);
  const auto best = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
  std::vector<uint32_t> allowed = {~0u, ~0u, ~0u};
  EXPECT_EQ(greedy({.allowed = allowed}, logits), best);
  allowed[best / 32] &= ~(1u << best % 32);
  EXPECT_NE(greedy({.allowed = allowed}, logits), best);
  allowed = {0, 1u << 31, 1u << 5};  // 63 and 69
  EXPECT_EQ(drawn({.temperature = 100, .allowed = allowed}, logits), (std::set<int32_t>{63, 69}));
  const Ids banned = {63};
  EXPECT_EQ(drawn({.banned_ids = banned, .allowed = allowed}, logits), (std::set<int32_t>{69}));
  // Log-probabilities are the raw ones.
  const SamplingResult result =
      sample({.temperature = 0, .allowed = allowed, .num_logprobs = 1}, logits);
  ASSERT_EQ(result.logprobs.size(), 2U);
  EXPECT_EQ(result.logprobs[1].token_id, best);
  EXPECT_EQ(result.logprobs[1].rank, 1);
}

TEST_P(SamplingTest, IdsOutsideTheVocabularyAreIgnored) {
  const Ids ids = {-1, 3, 1 << 30, std::numeric_limits<int32_t>::min()};
  const Bias bias = {{-1, 5.0f}, {3, 5.0f}};
  EXPECT_EQ(greedy({.repetition_penalty = 2,
                    .presence_penalty = 1,
                    .prompt_ids = ids,
                    .output_ids = ids,
                    .logit_bias = bias,
                    .banned_ids = ids},
                   {1, 3, 2}),
            1);
}

TEST_P(SamplingTest, LogprobsAreOfTheRawLogitsInOrderOfLikelihood) {
  const std::vector<double> p = {0.1, 0.4, 0.2, 0.3};
  const Bias bias = {{0, 50.0f}};
  const SamplingRow row{.temperature = 0, .logit_bias = bias, .num_logprobs = 2};
  const SamplingResult result = sample(row, logits_of(p));
  ASSERT_EQ(result.token_id, 0);
  ASSERT_EQ(result.logprobs.size(), 3U);
  const std::vector<std::pair<int32_t, int32_t>> expected = {{0, 4}, {1, 1}, {3, 2}};  // id, rank
  for (int i = 0; i < 3; ++i) {
    const auto [id, rank] = expected[i];
    EXPECT_EQ(result.logprobs[i].token_id, id);
    EXPECT_EQ(result.logprobs[i].rank, rank);
    EXPECT_NEAR(result.logprobs[i].logprob, std::log(p[id]), 1e-6);
  }
}

TEST_P(SamplingTest, TheChosenTokenIsNotRepeatedAmongTheMostLikely) {
  const std::vector<float> logits = {1, 3, 2};
  EXPECT_TRUE(sample({.temperature = 0}, logits).logprobs.empty());
  EXPECT_EQ(sample({.temperature = 0, .num_logprobs = 0}, logits).logprobs.size(), 1U);
  EXPECT_EQ(sample({.temperature = 0, .num_logprobs = 1}, logits).logprobs.size(), 1U);
  EXPECT_EQ(sample({.temperature = 0, .num_logprobs = 2}, logits).logprobs.size(), 2U);
  EXPECT_EQ(sample({.temperature = 0, .num_logprobs = 3}, logits).logprobs.size(), 3U);
  EXPECT_EQ(sample({.temperature = 0, .num_logprobs = 4}, logits).logprobs.size(), 3U);
}

TEST_P(SamplingTest, EqualLogitsRankBySmallerId) {
  std::vector<float> logits(300, 1);
  for (const int32_t forced : {0, 1, 127, 128, 299}) {
    const SamplingResult result = sample({.num_logprobs = 5, .forced_id = forced}, logits);
    EXPECT_EQ(result.logprobs[0].rank, forced + 1);
    for (size_t i = 1; i < result.logprobs.size(); ++i) {
      const LogprobEntry& entry = result.logprobs[i];
      EXPECT_EQ(entry.rank, entry.token_id + 1);
      EXPECT_LT(entry.token_id, 5);
    }
  }
}

TEST_P(SamplingTest, AForcedTokenIsScoredWithoutBeingDrawn) {
  const Ids banned = {1};
  const SamplingResult result =
      sample({.top_k = 1, .banned_ids = banned, .num_logprobs = 0, .forced_id = 1},
             logits_of({0.7, 0.1, 0.2}));
  EXPECT_EQ(result.token_id, 1);
  ASSERT_EQ(result.logprobs.size(), 1U);
  EXPECT_NEAR(result.logprobs[0].logprob, std::log(0.1), 1e-6);
  EXPECT_EQ(result.logprobs[0].rank, 3);
}

TEST_P(SamplingTest, ImpossibleTokensHaveLogprobMinusInfinity) {
  const SamplingResult result =
      sample({.num_logprobs = 3, .forced_id = 1}, {0, -kInfinity, -kInfinity});
  ASSERT_EQ(result.logprobs.size(), 3U);
  EXPECT_EQ(result.logprobs[0].logprob, -kInfinity);
  EXPECT_EQ(result.logprobs[0].rank, 2);
  EXPECT_EQ(result.logprobs[1].logprob, 0);
  EXPECT_EQ(result.logprobs[2].token_id, 2);
}

TEST_P(SamplingTest, ARowWithoutADistributionGivesNoTokenAndHarmsNobody) {
  constexpr int kSize = 300;
  const std::vector<float> good = normal_logits(kSize, 5, 2);
  const auto expect_none = [&](const std::vector<float>& bad, const SamplingRow& bad_row) {
    std::vector<float> logits = good;
    logits.insert(logits.end(), bad.begin(), bad.end());
    logits.insert(logits.end(), good.begin(), good.end());
    const SamplingRow row{.seed = 9, .num_logprobs = 2};
    const auto results = sample_rows(*backend_, {row, bad_row, row}, logits);
    EXPECT_EQ(results[1].token_id, -1);
    EXPECT_TRUE(results[1].logprobs.empty());
    const SamplingResult alone = sample(row, good);
    for (const int r : {0, 2}) {
      EXPECT_EQ(results[r].token_id, alone.token_id);
      EXPECT_EQ(results[r].logprobs[0].logprob, alone.logprobs[0].logprob);
    }
  };
  for (const SamplingRow& row :
       {SamplingRow{.num_logprobs = 3}, SamplingRow{.temperature = 0},
        SamplingRow{.top_p = 0.5f, .top_k = 3}, SamplingRow{.num_logprobs = 1, .forced_id = 7}}) {
    for (const int position : {0, 15, 128, kSize - 1}) {
      for (const float poison : {kNan, kInfinity}) {
        std::vector<float> bad = good;
        bad[position] = poison;
        expect_none(bad, row);
      }
    }
    expect_none(std::vector<float>(kSize, -kInfinity), row);
  }
  // Everything banned, nothing allowed; a bias that overflows.
  Ids all(kSize);
  for (int i = 0; i < kSize; ++i) all[i] = i;
  expect_none(good, {.banned_ids = all});
  const std::vector<uint32_t> nothing((kSize + 31) / 32);
  expect_none(good, {.allowed = nothing});
  const Bias overflow = {{3, std::numeric_limits<float>::max()},
                         {3, std::numeric_limits<float>::max()}};
  expect_none(good, {.logit_bias = overflow});
}

INSTANTIATE_TEST_SUITE_P(Backends, SamplingTest, ::testing::ValuesIn(backends()), name_of_backend);

}  // namespace
}  // namespace nanovllm::test
