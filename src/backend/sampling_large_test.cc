// Rows as long as real vocabularies are, where a backend cannot hold all that may be kept at a
// time: flat rows, long runs of equals, thresholds between neighbouring floats, edits all over the
// row.
#include <gtest/gtest.h>

#include <limits>

#include "backend/sampling_test_support.h"
#include "ops/reference_sampling.h"

namespace nanovllm::test {
namespace {

using Ids = std::vector<int32_t>;
using Bias = std::vector<std::pair<int32_t, float>>;

constexpr size_t kVocabSize = 100003;  // odd, and many blocks

using SamplingLargeTest = SamplingBackendTest;

void expect_drawn_as_reference(Backend& backend, SamplingRow row,
                               const std::vector<float>& logits) {
  constexpr int kDraws = 6;
  const std::vector<double> probabilities = reference_probabilities(row, logits);
  const std::vector<int32_t> ids = draws(backend, row, logits, kDraws);
  for (int i = 0; i < kDraws; ++i) {
    row.position = i;
    expect_drawn(ids[i], row, probabilities);
  }
}

std::vector<float> rounded_logits(uint32_t seed, float step) {
  std::vector<float> logits = normal_logits(kVocabSize, seed, 1);
  for (float& x : logits) x = std::round(x / step) * step;
  return logits;
}

TEST_P(SamplingLargeTest, FlatRows) {
  const std::vector<float> logits = normal_logits(kVocabSize, 1, 1);
  for (const SamplingRow& row :
       {SamplingRow{.seed = 1}, SamplingRow{.top_p = 0.9f, .seed = 2},
        SamplingRow{.temperature = 0.3f, .top_p = 0.5f, .seed = 3},
        SamplingRow{.temperature = 5, .top_p = 0.999f, .seed = 4},
        SamplingRow{.top_k = 50, .seed = 5}, SamplingRow{.top_k = 5000, .seed = 6},
        SamplingRow{.top_k = 60000, .seed = 7},
        SamplingRow{.temperature = 100, .top_k = 90000, .seed = 8},
        SamplingRow{.min_p = 0.02f, .seed = 9},
        SamplingRow{.top_p = 0.7f, .top_k = 20000, .seed = 10}}) {
    SCOPED_TRACE(::testing::Message() << "seed " << row.seed);
    expect_drawn_as_reference(*backend_, row, logits);
  }
}

TEST_P(SamplingLargeTest, RowsOfATrainedModel) {
  std::vector<float> logits = normal_logits(kVocabSize, 2, 2.5f);
  for (int i = 0; i < 30; ++i) logits[i * 3301] += 12;
  for (const SamplingRow& row :
       {SamplingRow{.temperature = 0.6f, .top_p = 0.95f, .top_k = 20, .seed = 1},
        SamplingRow{.top_p = 0.9f, .seed = 2}, SamplingRow{.top_p = 0.9999f, .seed = 3},
        SamplingRow{.min_p = 0.05f, .seed = 4}}) {
    SCOPED_TRACE(::testing::Message() << "seed " << row.seed);
    expect_drawn_as_reference(*backend_, row, logits);
  }
}

TEST_P(SamplingLargeTest, MoreEqualsAtTheThresholdThanFitAnywhere) {
  const std::vector<float> logits = rounded_logits(3, 0.5f);
  for (const SamplingRow& row :
       {SamplingRow{.top_p = 0.5f, .seed = 1}, SamplingRow{.top_k = 1000, .seed = 2},
        SamplingRow{.top_k = 30000, .seed = 3},
        SamplingRow{.top_p = 0.6f, .top_k = 30000, .seed = 4}}) {
    SCOPED_TRACE(::testing::Message() << "seed " << row.seed);
    expect_drawn_as_reference(*backend_, row, logits);
  }
}

TEST_P(SamplingLargeTest, TopPKeepsSmallerIdsOfALongRunOfEquals) {
  constexpr int kDraws = full_or_reduced(200, 40);
  const std::vector<float> equal(kVocabSize, -3);
  const std::vector<int32_t> ids = draws(*backend_, {.top_p = 0.25f, .seed = 1}, equal, kDraws);
  EXPECT_LE(*std::max_element(ids.begin(), ids.end()), static_cast<int32_t>(kVocabSize / 4 + 1));
  EXPECT_GT(*std::max_element(ids.begin(), ids.end()), static_cast<int32_t>(kVocabSize / 5));
}

TEST_P(SamplingLargeTest, ThresholdsBetweenNeighbouringFloats) {
  constexpr int kDraws = full_or_reduced(100, 10);
  for (const float x : {1.0f, 0.0f, -0.0f, -1.0f}) {
    std::vector<float> logits(kVocabSize, x);
    const float above = std::nextafter(x, 2.0f);
    for (size_t i = 0; i < kVocabSize; i += 5) logits[i] = above;
    const auto num_above = static_cast<int32_t>((kVocabSize + 4) / 5);
    const std::vector<int32_t> of_above =
        draws(*backend_, {.top_k = num_above, .seed = 1}, logits, kDraws);
    for (const int32_t id : of_above) EXPECT_EQ(id % 5, 0);
    const std::vector<int32_t> of_all =
        draws(*backend_, {.top_k = num_above + 1, .seed = 1}, logits, kDraws);
    EXPECT_TRUE(std::any_of(of_all.begin(), of_all.end(), [](int32_t id) { return id % 5 != 0; }));
  }
}

TEST_P(SamplingLargeTest, EditsAllOverTheRow) {
  std::mt19937 rng(5);
  const std::vector<float> logits = normal_logits(kVocabSize, 6, 3);
  const auto random_ids = [&](int count, uint32_t among) {
    Ids ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(rng() % among * 13 % kVocabSize);
    return ids;
  };
  const Ids prompt = random_ids(20000, kVocabSize);
  const Ids output = random_ids(9000, 700);
  const Ids banned = random_ids(500, kVocabSize);
  Bias bias;
  for (const int32_t id : random_ids(300, 200)) bias.emplace_back(id, 3.0f - 0.01f * (id % 100));
  const int32_t last = kVocabSize - 1;
  for (const int32_t id : {0, 127, 128, 8191, 8192, last}) bias.emplace_back(id, 2.0f);
  SamplingRow row{.repetition_penalty = 1.3f,
                  .presence_penalty = 0.7f,
                  .frequency_penalty = 0.05f,
                  .seed = 1,
                  .prompt_ids = prompt,
                  .output_ids = output,
                  .logit_bias = bias,
                  .banned_ids = banned,
                  .num_logprobs = 20};
  expect_drawn_as_reference(*backend_, row, logits);
  row.temperature = 0;
  const SamplingResult result = sample_row(*backend_, row, logits);
  const SamplingResult expected = reference_sample(row, logits);
  EXPECT_EQ(result.token_id, expected.token_id);
  expect_near(result.logprobs, expected.logprobs);
}

TEST_P(SamplingLargeTest, RanksOfUnlikelyTokensAndOfEquals) {
  const std::vector<float> logits = rounded_logits(7, 0.25f);
  for (const int32_t forced : {0, 1000, 50000, static_cast<int32_t>(kVocabSize) - 1}) {
    const SamplingRow row{.num_logprobs = 20, .forced_id = forced};
    const SamplingResult result = sample_row(*backend_, row, logits);
    const SamplingResult expected = reference_sample(row, logits);
    expect_near(result.logprobs, expected.logprobs);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, SamplingLargeTest, ::testing::ValuesIn(backends()),
                         name_of_backend);

}  // namespace
}  // namespace nanovllm::test
