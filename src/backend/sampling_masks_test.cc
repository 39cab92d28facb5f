// Masks of allowed tokens, which a backend may keep by their keys: the same keys again and again,
// more of them than it keeps, and rows of all kinds beside each other.
#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <utility>

#include "backend/sampling_test_support.h"
#include "ops/reference_sampling.h"

namespace nanovllm::test {
namespace {

using Ids = std::vector<int32_t>;
using Mask = std::vector<uint32_t>;

Mask mask_of_ids(size_t vocab_size, const Ids& ids) {
  Mask mask((vocab_size + 31) / 32);
  for (const int32_t id : ids) mask[id / 32] |= 1u << (id % 32);
  return mask;
}

// Bits behind the vocabulary mean nothing: they are random too.
Mask random_mask(size_t vocab_size, double share, std::mt19937& rng) {
  std::bernoulli_distribution is_allowed(share);
  Mask mask((vocab_size + 31) / 32);
  for (size_t bit = 0; bit < 32 * mask.size(); ++bit) {
    if (is_allowed(rng)) mask[bit / 32] |= 1u << (bit % 32);
  }
  return mask;
}

// Mask i allows token i % vocab_size and no other; its key is first_key + i.
class KeyedMasks {
 public:
  KeyedMasks(int count, int32_t vocab_size, uint64_t first_key = 1)
      : vocab_size_(vocab_size), first_key_(first_key) {
    for (int i = 0; i < count; ++i) masks_.push_back(mask_of_ids(vocab_size, {i % vocab_size}));
  }
  SamplingRow row(int i) const {
    return {.temperature = 0, .allowed = masks_[i], .allowed_key = first_key_ + i};
  }
  void expect_steps(Backend& backend, const std::vector<std::vector<int>>& steps) const {
    for (const std::vector<int>& step : steps) {
      std::vector<SamplingRow> rows;
      for (const int i : step) rows.push_back(row(i));
      const auto results =
          sample_rows(backend, rows, normal_logits(rows.size() * vocab_size_, 1, 2));
      for (size_t r = 0; r < step.size(); ++r) {
        ASSERT_EQ(results[r].token_id, step[r] % vocab_size_) << "mask " << step[r];
      }
    }
  }

 private:
  const int32_t vocab_size_;
  const uint64_t first_key_;
  std::vector<Mask> masks_;
};

std::vector<int> range(int begin, int end) {
  std::vector<int> numbers(end - begin);
  std::iota(numbers.begin(), numbers.end(), begin);
  return numbers;
}

using SamplingMasksTest = SamplingBackendTest;

TEST_P(SamplingMasksTest, AMaskMayComeTwiceInAStepAndInManySteps) {
  const KeyedMasks masks(20, 70);
  masks.expect_steps(*backend_, {{0}, {0}, {0, 0, 1, 0}, {1, 2, 1}, range(0, 20), {19, 3, 3, 0}});
}

TEST_P(SamplingMasksTest, MoreMasksMayComeThanABackendKeeps) {
  const KeyedMasks masks(1500, 130);
  std::vector<std::vector<int>> steps;
  for (int round = 0; round < 3; ++round) {
    for (int begin = 0; begin < 1500; begin += 100) {
      steps.push_back(range(begin, begin + 100));
      steps.push_back({7, begin, 7});  // used so often that it stays
    }
  }
  masks.expect_steps(*backend_, steps);
}

TEST_P(SamplingMasksTest, AStepMayHaveMoreMasksThanAnyBefore) {
  const KeyedMasks masks(3000, 40);
  masks.expect_steps(*backend_, {range(0, 10), range(0, 1024), range(500, 1525), range(0, 1525),
                                 range(0, 3000), range(2990, 3000), range(0, 10)});
}

TEST_P(SamplingMasksTest, VocabulariesOfOtherSizesMayFollow) {
  for (const int32_t vocab_size : {70, 4, 128, 129, 70}) {
    const KeyedMasks masks(5, vocab_size, 10 * vocab_size);
    masks.expect_steps(*backend_, {range(0, 5), range(0, 5)});
  }
}

TEST_P(SamplingMasksTest, MasksWithoutAKeyAreReadEachTime) {
  const std::vector<float> logits = normal_logits(200, 2, 2);
  for (const uint64_t key : {1, 0, 2}) {
    for (int32_t id = 0; id < 200; id += 13) {
      const uint64_t own_key = key == 0 ? 0 : 1000 * key + id;
      Mask mask = mask_of_ids(200, {id});
      const SamplingRow row{.temperature = 0, .allowed = mask, .allowed_key = own_key};
      std::vector<float> both = logits;
      both.insert(both.end(), logits.begin(), logits.end());
      const auto device = on_device(*backend_, both);
      const Tensor tensor(device->data(), DType::kFloat32, {2, 200});
      const auto ticket = backend_->sample(std::vector<SamplingRow>{row, {.temperature = 0}},
                                           tensor, nullptr, nullptr);
      mask.assign(mask.size(), 0);  // the caller's again
      std::vector<SamplingResult> results(2);
      ticket->collect(results);
      EXPECT_EQ(results[0].token_id, id);
      EXPECT_EQ(results[1].token_id, reference_sample({.temperature = 0}, logits).token_id);
    }
  }
}

TEST_P(SamplingMasksTest, AMaskThatLeavesNothingGivesNoTokenAndHarmsNobody) {
  const std::vector<float> logits = normal_logits(3 * 300, 3, 2);
  const Mask nothing(10), all(10, ~0u);
  const Ids banned = {17};
  const Mask only_banned = mask_of_ids(300, banned);
  for (const uint64_t key : {0, 1}) {
    for (const SamplingRow& none :
         {SamplingRow{.allowed = nothing, .allowed_key = key, .num_logprobs = 2},
          SamplingRow{.temperature = 0, .allowed = nothing, .allowed_key = key},
          SamplingRow{.top_p = 0.5f, .top_k = 3, .allowed = nothing, .allowed_key = key},
          SamplingRow{.banned_ids = banned, .allowed = only_banned, .allowed_key = 2 * key}}) {
      const SamplingRow good{.seed = 9, .allowed = all, .allowed_key = 3 * key, .num_logprobs = 2};
      const auto results = sample_rows(*backend_, {good, none, good}, logits);
      EXPECT_EQ(results[1].token_id, -1);
      EXPECT_TRUE(results[1].logprobs.empty());
      for (const int r : {0, 2}) {
        const std::vector<float> own(logits.begin() + 300 * r, logits.begin() + 300 * (r + 1));
        const SamplingResult alone = sample_row(*backend_, {.seed = 9, .num_logprobs = 2}, own);
        EXPECT_EQ(results[r].token_id, alone.token_id);
        expect_near(results[r].logprobs, alone.logprobs);
      }
    }
  }
}

TEST_P(SamplingMasksTest, WhatIsMaskedSpoilsTheRowByWhatItWasAndNotByItsEdits) {
  std::vector<float> logits = normal_logits(300, 4, 2);
  const Mask mask = mask_of_ids(300, {40, 200});
  const std::vector<std::pair<int32_t, float>> overflow = {
      {250, std::numeric_limits<float>::max()}, {250, std::numeric_limits<float>::max()}};
  const SamplingRow row{.temperature = 0, .logit_bias = overflow, .allowed = mask};
  EXPECT_EQ(sample_row(*backend_, row, logits).token_id, logits[40] >= logits[200] ? 40 : 200);
  for (const float poison :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    logits[7] = poison;
    EXPECT_EQ(sample_row(*backend_, {.temperature = 0, .allowed = mask}, logits).token_id, -1);
    EXPECT_EQ(sample_row(*backend_, row, logits).token_id, -1);
  }
}

TEST_P(SamplingMasksTest, AForcedTokenNeedNotBeAllowed) {
  const Mask mask = mask_of_ids(3, {0});
  const SamplingResult result = sample_row(
      *backend_, {.allowed = mask, .num_logprobs = 0, .forced_id = 1}, logits_of({0.7, 0.1, 0.2}));
  EXPECT_EQ(result.token_id, 1);
  ASSERT_EQ(result.logprobs.size(), 1U);
  EXPECT_NEAR(result.logprobs[0].logprob, std::log(0.1), 1e-6);
}

// Rows with masks and without, of known keys, new ones and none, with whatever else a row may want,
// some with a token that the host does not know yet.
class SamplingMixTest : public SamplingBackendTest {
 protected:
  void expect_steps_as_reference(int32_t vocab_size, int num_steps);

 private:
  // A row, and what it means where everything is known.
  struct Case {
    SamplingRow row;
    Ids prompt, output, known_output, banned;
    std::vector<std::pair<int32_t, float>> bias;

    SamplingRow known() const {
      SamplingRow known = row;
      known.output_ids = known_output;
      known.pending_from = -1;
      return known;
    }
  };
  void fill(Case& c, const Ids& previous);
  bool maybe() { return rng_() % 2 == 0; }
  Ids some_ids(size_t most) {
    Ids ids(rng_() % (most + 1));
    for (int32_t& id : ids) id = static_cast<int32_t>(rng_() % vocab_size_);
    return ids;
  }

  std::mt19937 rng_{5};
  int32_t vocab_size_ = 0;
  std::vector<Mask> kept_;  // key i + 1
};

void SamplingMixTest::fill(Case& c, const Ids& previous) {
  SamplingRow& row = c.row;
  const auto uniform = [&](float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(rng_);
  };
  row.temperature = maybe() ? 0 : uniform(0.3f, 2);
  row.seed = rng_();
  row.position = rng_() % 1000;
  if (maybe()) row.top_p = uniform(0.3f, 1);
  if (maybe()) row.top_k = static_cast<int32_t>(rng_() % 40);
  if (maybe()) row.num_logprobs = static_cast<int32_t>(rng_() % 6);
  if (maybe()) {
    c.banned = some_ids(5);
    row.banned_ids = c.banned;
  }
  if (maybe()) {
    for (const int32_t id : some_ids(5)) c.bias.emplace_back(id, uniform(-3, 3));
    row.logit_bias = c.bias;
  }
  if (maybe()) {
    row.repetition_penalty = uniform(0.7f, 1.5f);
    row.frequency_penalty = uniform(-1, 1);
    c.prompt = some_ids(20);
    c.output = c.known_output = some_ids(20);
    if (maybe()) {
      row.pending_from = static_cast<int32_t>(rng_() % previous.size());
      c.known_output.push_back(previous[row.pending_from]);
    }
    row.prompt_ids = c.prompt;
    row.output_ids = c.output;
  }
  if (maybe()) {
    const size_t which = rng_() % kept_.size();
    row.allowed = kept_[which];
    row.allowed_key = maybe() ? which + 1 : 0;
  }
}

void SamplingMixTest::expect_steps_as_reference(int32_t vocab_size, int num_steps) {
  vocab_size_ = vocab_size;
  for (const double share : {0.9, 0.5, 0.1, 2.0 / vocab_size}) {
    for (int i = 0; i < 5; ++i) kept_.push_back(random_mask(vocab_size, share, rng_));
  }
  const Ids previous = {3, 1, 0, vocab_size - 1};
  const auto previous_ids = on_device(*backend_, previous);
  for (int step = 0; step < num_steps; ++step) {
    std::vector<Case> cases(1 + rng_() % 12);
    std::vector<SamplingRow> rows;
    for (Case& c : cases) {
      fill(c, previous);
      rows.push_back(c.row);
    }
    const std::vector<float> logits = normal_logits(rows.size() * vocab_size, rng_(), 3);
    const auto device = on_device(*backend_, logits);
    const Tensor tensor(device->data(), DType::kFloat32,
                        {static_cast<int64_t>(rows.size()), vocab_size});
    std::vector<SamplingResult> results(rows.size());
    backend_->sample(rows, tensor, nullptr, static_cast<const int32_t*>(previous_ids->data()))
        ->collect(results);
    for (size_t r = 0; r < rows.size(); ++r) {
      SCOPED_TRACE(::testing::Message() << "vocabulary of " << vocab_size << ", step " << step
                                        << ", row " << r << " of " << rows.size());
      const SamplingRow row = cases[r].known();
      const auto own = logits.begin() + static_cast<int64_t>(r) * vocab_size;
      const std::vector<float> raw(own, own + vocab_size);
      const SamplingResult expected = reference_sample(row, raw);
      if (expected.token_id < 0 || is_greedy(row)) {
        EXPECT_EQ(results[r].token_id, expected.token_id);
      } else {
        expect_drawn(results[r].token_id, row, reference_probabilities(row, raw));
      }
      if (results[r].token_id == expected.token_id) {
        expect_near(results[r].logprobs, expected.logprobs);
      }
    }
  }
}

TEST_P(SamplingMixTest, RowsAreTheReferencesWhateverTheirMasks) {
  const int num_steps = full_or_reduced(40, 8);
  expect_steps_as_reference(3000, num_steps);
}

TEST_P(SamplingMixTest, VocabulariesNeedNotFillWordsNorBlocks) {
  expect_steps_as_reference(1030 + 129, full_or_reduced(40, 8));
}

TEST_P(SamplingMixTest, VocabulariesMayBeSmallerThanAWord) {
  expect_steps_as_reference(13, full_or_reduced(40, 8));
}

INSTANTIATE_TEST_SUITE_P(Backends, SamplingMasksTest, ::testing::ValuesIn(backends()),
                         name_of_backend);
INSTANTIATE_TEST_SUITE_P(Backends, SamplingMixTest, ::testing::ValuesIn(backends()),
                         name_of_backend);

}  // namespace
}  // namespace nanovllm::test
