// That draws have the distribution of the scalar reference, come again from the same seed, and do
// not depend on threads or batch mates.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "backend/sampling_test_support.h"
#include "ops/reference_sampling.h"

namespace nanovllm::test {
namespace {

using Ids = std::vector<int32_t>;
using Bias = std::vector<std::pair<int32_t, float>>;

std::vector<int> histogram_of_draws(Backend& backend, const SamplingRow& row,
                                    const std::vector<float>& logits, int num_draws) {
  std::vector<int> counts(logits.size());
  for (const int32_t id : draws(backend, row, logits, num_draws)) ++counts[id];
  return counts;
}

// Pearson's statistic against `probabilities`, as the number of standard deviations it is above its
// expectation; tokens expected less than 5 times are taken together.
double chi_square_deviation(const std::vector<int>& counts,
                            const std::vector<double>& probabilities) {
  int num_draws = 0;
  for (const int count : counts) num_draws += count;
  double statistic = 0;
  double rare_expected = 0;
  double rare_seen = 0;
  int cells = 0;
  const auto add = [&](double seen, double expected) {
    statistic += (seen - expected) * (seen - expected) / expected;
    ++cells;
  };
  for (size_t id = 0; id < counts.size(); ++id) {
    if (probabilities[id] == 0) {
      EXPECT_EQ(counts[id], 0) << "token " << id << " is not kept";
      continue;
    }
    const double expected = probabilities[id] * num_draws;
    if (expected < 5) {
      rare_expected += expected;
      rare_seen += counts[id];
    } else {
      add(counts[id], expected);
    }
  }
  if (rare_expected > 0) add(rare_seen, rare_expected);
  const double freedom = std::max(cells - 1, 1);
  return (statistic - freedom) / std::sqrt(2 * freedom);
}

using SamplingDistributionTest = SamplingBackendTest;

TEST_P(SamplingDistributionTest, DrawsHaveTheReferencesDistribution) {
  const Ids prompt = {1, 2, 3, 3};
  const Ids output = {4, 4, 5};
  const Bias bias = {{6, 2.0f}, {7, -3.0f}};
  const Ids banned = {8, 9};
  const std::vector<SamplingRow> rows = {
      {.seed = 1},
      {.temperature = 0.6f, .seed = 2},
      {.temperature = 2.5f, .seed = 3},
      {.top_p = 0.7f, .seed = 4},
      {.top_k = 17, .seed = 5},
      {.min_p = 0.2f, .seed = 6},
      {.temperature = 0.8f, .top_p = 0.9f, .min_p = 0.02f, .top_k = 30, .seed = 7},
      {.repetition_penalty = 1.5f,
       .presence_penalty = 0.5f,
       .frequency_penalty = 0.4f,
       .seed = 8,
       .prompt_ids = prompt,
       .output_ids = output,
       .logit_bias = bias,
       .banned_ids = banned}};
  for (const size_t vocab_size : {10, 40, 700}) {
    const std::vector<float> logits =
        normal_logits(vocab_size, static_cast<uint32_t>(vocab_size), 1.5f);
    for (const SamplingRow& row : rows) {
      const std::vector<int> counts =
          histogram_of_draws(*backend_, row, logits, full_or_reduced(20000, 2000));
      const std::vector<double> probabilities = reference_probabilities(row, logits);
      EXPECT_LT(chi_square_deviation(counts, probabilities), 4)
          << "vocabulary of " << vocab_size << ", seed " << row.seed;
    }
  }
}

TEST_P(SamplingDistributionTest, AWrongDistributionIsNoticed) {
  const std::vector<float> logits = normal_logits(40, 1, 1.5f);
  const std::vector<int> counts = histogram_of_draws(*backend_, {}, logits, 20000);
  EXPECT_GT(chi_square_deviation(counts, reference_probabilities({.temperature = 1.1f}, logits)),
            4);
}

TEST_P(SamplingDistributionTest, RandomRowsAreDrawnAsTheReferenceDraws) {
  std::mt19937 rng(7);
  const auto uniform = [&](float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(rng);
  };
  const auto maybe = [&] { return rng() % 2 == 0; };
  for (const size_t vocab_size : {1, 2, 17, 128, 129, 1000, 6000}) {
    for (int i = 0; i < 60; ++i) {
      std::vector<float> logits = normal_logits(vocab_size, rng(), uniform(0.1f, 6));
      // Equal logits, as a checkpoint with few bits gives them.
      if (i % 3 == 0) {
        for (float& x : logits) x = std::round(x * 4) / 4;
      }
      Ids prompt(rng() % 50);
      for (int32_t& id : prompt) id = static_cast<int32_t>(rng() % vocab_size);
      Ids output(rng() % 50);
      for (int32_t& id : output) id = static_cast<int32_t>(rng() % vocab_size);
      SamplingRow row{.temperature = uniform(0.1f, 3), .seed = rng(), .position = rng() % 1000};
      if (maybe()) row.top_p = uniform(0.05f, 1);
      if (maybe()) row.min_p = uniform(0, 0.5f);
      if (maybe()) row.top_k = static_cast<int32_t>(rng() % (vocab_size + 2));
      if (maybe()) row.prompt_ids = prompt;
      if (maybe()) row.output_ids = output;
      if (maybe()) row.repetition_penalty = uniform(0.5f, 2);
      if (maybe()) row.frequency_penalty = uniform(-2, 2);
      if (maybe()) row.presence_penalty = uniform(-2, 2);
      SCOPED_TRACE(::testing::Message() << "vocabulary of " << vocab_size << ", case " << i);
      expect_drawn(sample_row(*backend_, row, logits).token_id, row,
                   reference_probabilities(row, logits));
    }
  }
}

TEST_P(SamplingDistributionTest, GreedyAndLogprobsAreTheReferences) {
  std::mt19937 rng(11);
  for (const size_t vocab_size : {1, 2, 129, 3000}) {
    for (int i = 0; i < 30; ++i) {
      std::vector<float> logits = normal_logits(vocab_size, rng(), 3);
      if (i % 2 == 0) {
        for (float& x : logits) x = std::round(x * 2) / 2;
      }
      const SamplingRow row{
          .temperature = 0,
          .num_logprobs = static_cast<int32_t>(rng() % 21),
          .forced_id = i % 3 == 0 ? static_cast<int32_t>(rng() % vocab_size) : -1};
      const SamplingResult result = sample_row(*backend_, row, logits);
      const SamplingResult expected = reference_sample(row, logits);
      EXPECT_EQ(result.token_id, expected.token_id);
      expect_near(result.logprobs, expected.logprobs);
    }
  }
}

TEST_P(SamplingDistributionTest, SeedAndPositionDecideTheDraw) {
  const std::vector<float> logits = normal_logits(1000, 3, 1);
  const auto draw = [&](uint64_t seed, uint64_t position) {
    return sample_row(*backend_, {.seed = seed, .position = position}, logits).token_id;
  };
  std::vector<int32_t> by_position;
  std::vector<int32_t> by_seed;
  for (int i = 0; i < 50; ++i) {
    by_position.push_back(draw(1, i));
    by_seed.push_back(draw(i, 1));
    EXPECT_EQ(draw(1, i), by_position.back());
  }
  EXPECT_NE(by_position, by_seed);
  const auto distinct = [](std::vector<int32_t> ids) {
    std::sort(ids.begin(), ids.end());
    return std::unique(ids.begin(), ids.end()) - ids.begin();
  };
  EXPECT_GT(distinct(by_position), 40);
  EXPECT_GT(distinct(by_seed), 40);
}

TEST_P(SamplingDistributionTest, ThreadsAndBatchMatesChangeNothing) {
  constexpr size_t kVocabSize = 20011;  // several ranges of blocks, the last one short
  const std::vector<SamplingRow> kinds = {
      {.temperature = 0, .num_logprobs = 3},
      {.seed = 4},
      {.temperature = 3, .top_p = 0.95f, .seed = 5, .num_logprobs = 2},
      {.top_p = 0.9f, .top_k = 20, .seed = 6},
      {.top_k = 2000, .seed = 7}};
  for (const int num_rows : {1, 2, 5}) {
    std::vector<SamplingRow> rows(kinds.begin(), kinds.begin() + num_rows);
    const std::vector<float> logits = normal_logits(kVocabSize * num_rows, 8, 2);
    for (int position = 0; position < 20; ++position) {
      for (SamplingRow& row : rows) row.position = position;
      const auto expected = sample_rows(*backend_, rows, logits);
      for (const int num_threads : {2, 3}) {
        const auto results = sample_rows(*GetParam().make(num_threads), rows, logits);
        for (int r = 0; r < num_rows; ++r) {
          EXPECT_EQ(results[r].token_id, expected[r].token_id);
          ASSERT_EQ(results[r].logprobs.size(), expected[r].logprobs.size());
          for (size_t k = 0; k < expected[r].logprobs.size(); ++k) {
            EXPECT_EQ(results[r].logprobs[k].logprob, expected[r].logprobs[k].logprob);
          }
        }
      }
      for (int r = 0; r < num_rows; ++r) {
        const auto begin = logits.begin() + static_cast<int64_t>(r * kVocabSize);
        const SamplingResult alone =
            sample_row(*backend_, rows[r], {begin, begin + static_cast<int64_t>(kVocabSize)});
        EXPECT_EQ(alone.token_id, expected[r].token_id);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SamplingDistributionTest, ::testing::ValuesIn(backends()),
                         name_of_backend);

}  // namespace
}  // namespace nanovllm::test
