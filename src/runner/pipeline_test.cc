// What a step gives does not depend on how it is run: one at a time or submitted ahead of the
// tokens it continues, with drafts or without, op by op or as a graph, by one rank or by two.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/registry.h"
#include "models/testing.h"
#include "nanovllm/error.h"
#include "runner/parallel_runner.h"

namespace nanovllm {
namespace {

using Ids = std::vector<int32_t>;
using nanovllm::testing::golden_dir;

constexpr int kBlocksPerSequence = 8;
constexpr int kNumSequences = 6;

// Where a test runs.
struct Place {
  std::string name;
  std::string device;
  int num_ranks = 1;
};

bool is_there(const Place& place) {
  try {
    make_backend(
        {.device = place.device, .num_ranks = place.num_ranks, .rank = place.num_ranks - 1});
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::unique_ptr<Runner> load(const Place& place, const std::string& dtype,
                             bool enforce_eager = false) {
  EngineConfig config;
  config.device = place.device;
  config.tensor_parallel_size = place.num_ranks;
  config.dtype = dtype;
  config.num_threads = place.num_ranks;
  config.kvcache_block_size = 16;
  config.num_kvcache_blocks = kNumSequences * kBlocksPerSequence;
  config.max_num_seqs = kNumSequences;
  config.max_num_batched_tokens = 256;
  config.enforce_eager = enforce_eager;
  const ModelConfig model = load_model_config(golden_dir("qwen3_tied"));
  EngineInfo info;
  return make_runner(model, config, info);
}

// A sequence as the engine keeps it.
struct Sequence {
  Ids token_ids;
  size_t num_tokens = 0;  // pending one included
  size_t num_wanted = 0;
  int num_computed = 0;
  int draw = -1;  // its number in the step submitted last
  Ids blocks = {};
  SamplingRow sampling = {};

  size_t num_prompt_tokens = token_ids.size();
};

// Sequences of several lengths that end at different times: batches of every size from 6 to 1.
std::vector<Sequence> make_sequences(bool greedy) {
  std::mt19937 rng(7);
  std::vector<Sequence> sequences;
  for (int s = 0; s < kNumSequences; ++s) {
    Ids ids(5 + 11 * s);
    for (int32_t& id : ids) id = static_cast<int32_t>(rng() % 380);
    Sequence sequence{
        .token_ids = ids, .num_tokens = ids.size(), .num_wanted = ids.size() + 9 + 7 * s};
    for (int b = 0; b < kBlocksPerSequence; ++b) {
      sequence.blocks.push_back(b * kNumSequences + s);
    }
    sequence.sampling = {.temperature = greedy ? 0.0f : 1.5f, .seed = 100U + s, .num_logprobs = 3};
    if (s % 2 == 1) sequence.sampling.repetition_penalty = 1.3f;
    sequences.push_back(sequence);
  }
  return sequences;
}

// Of the draw of token `position`, behind what is known of these ids.
SamplingRow row_of(const Sequence& sequence, std::span<const int32_t> ids, size_t position) {
  SamplingRow row = sequence.sampling;
  row.position = position;
  row.prompt_ids = ids.first(sequence.num_prompt_tokens);
  row.output_ids = ids.subspan(sequence.num_prompt_tokens);
  return row;
}

// The whole batch in steps of at most `chunk` new tokens a sequence.
class Driver {
 public:
  Driver(Runner& runner, std::vector<Sequence> sequences, int depth)
      : runner_(runner), sequences_(std::move(sequences)), depth_(depth) {}

  // What each sequence sampled, in order.
  std::vector<std::vector<SamplingResult>> run(int chunk, int recompute_at_step = -1) {
    outputs_.resize(sequences_.size());
    for (int step = 0;; ++step) {
      // As after a preemption: the KV is computed again, a pending token's too.
      if (step == recompute_at_step) sequences_.back().num_computed = 0;
      const bool submitted = submit(chunk);
      if (in_flight_.empty()) return outputs_;
      if (std::ssize(in_flight_) > depth_ || !submitted) collect();
    }
  }

  bool submit(int chunk) {
    if (!submit_only(chunk)) return false;
    runner_.draw(rows_);
    return true;
  }

  bool submit_only(int chunk) {
    StepInput input;
    rows_.clear();
    std::vector<std::pair<int, int>> order;  // new tokens, sequence
    for (size_t s = 0; s < sequences_.size(); ++s) {
      const Sequence& sequence = sequences_[s];
      const int left = static_cast<int>(sequence.num_tokens) - sequence.num_computed;
      if (sequence.num_tokens < sequence.num_wanted && left > 0) {
        order.emplace_back(std::min(chunk, left), static_cast<int>(s));
      }
    }
    std::stable_partition(order.begin(), order.end(), [](auto& o) { return o.first == 1; });
    std::vector<int> sampled;
    int num_draws = 0;
    for (const auto& [num_new, s] : order) {
      Sequence& sequence = sequences_[s];
      SequenceInput in{.token_ids = sequence.token_ids,
                       .num_computed_tokens = sequence.num_computed,
                       .num_new_tokens = num_new,
                       .block_table = sequence.blocks};
      const bool reaches_end =
          sequence.num_computed + num_new == static_cast<int>(sequence.num_tokens);
      in.sample = reaches_end;
      if (reaches_end && sequence.token_ids.size() < sequence.num_tokens) {
        in.pending_from = sequence.draw;
      }
      if (reaches_end) {
        rows_.push_back(row_of(sequence, sequence.token_ids, sequence.num_tokens));
        rows_.back().pending_from = in.pending_from;
        sequence.draw = num_draws++;
      }
      sampled.push_back(reaches_end ? s : -1);
      input.sequences.push_back(in);
      sequence.num_computed += num_new;
      if (reaches_end) ++sequence.num_tokens;
    }
    if (input.sequences.empty()) return false;
    runner_.submit(input);
    in_flight_.push_back(sampled);
    return true;
  }

 private:
  void collect() {
    const StepOutput output = runner_.collect();
    const std::vector<int> sampled = std::move(in_flight_.front());
    in_flight_.erase(in_flight_.begin());
    for (size_t i = 0; i < sampled.size(); ++i) {
      if (sampled[i] < 0) continue;
      const SamplingResult& result = output.sequences[i].sampled[0];
      sequences_[sampled[i]].token_ids.push_back(result.token_id);
      outputs_[sampled[i]].push_back(result);
    }
  }

  Runner& runner_;
  std::vector<Sequence> sequences_;
  int depth_;
  std::vector<SamplingRow> rows_;            // of the step submitted last
  std::vector<std::vector<int>> in_flight_;  // which sequence each row samples
  std::vector<std::vector<SamplingResult>> outputs_;
};

void expect_same(const std::vector<std::vector<SamplingResult>>& one,
                 const std::vector<std::vector<SamplingResult>>& other, float tolerance) {
  ASSERT_EQ(one.size(), other.size());
  for (size_t s = 0; s < one.size(); ++s) {
    ASSERT_EQ(one[s].size(), other[s].size()) << "sequence " << s;
    for (size_t i = 0; i < one[s].size(); ++i) {
      ASSERT_EQ(one[s][i].token_id, other[s][i].token_id) << "sequence " << s << ", token " << i;
      ASSERT_EQ(one[s][i].logprobs.size(), other[s][i].logprobs.size());
      for (size_t k = 0; k < one[s][i].logprobs.size(); ++k) {
        EXPECT_NEAR(one[s][i].logprobs[k].logprob, other[s][i].logprobs[k].logprob, tolerance)
            << "sequence " << s << ", token " << i;
      }
    }
  }
}

class Pipeline : public ::testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    if (!is_there(GetParam())) GTEST_SKIP() << "this machine has fewer GPUs";
  }
};

TEST_P(Pipeline, StepsSubmittedAheadSampleTheSameTokens) {
  for (const std::string dtype : {"bfloat16", "float32"}) {
    for (const bool greedy : {true, false}) {
      const auto runner = load(GetParam(), dtype);
      const auto alone = Driver(*runner, make_sequences(greedy), 0).run(256);
      const auto ahead = Driver(*runner, make_sequences(greedy), 1).run(256);
      ASSERT_EQ(alone[0].size(), 9U);
      expect_same(ahead, alone, 0);
    }
  }
}

TEST_P(Pipeline, ChunksAndDecodesMixAhead) {
  const auto runner = load(GetParam(), "float32");
  const auto alone = Driver(*runner, make_sequences(true), 0).run(9);
  expect_same(Driver(*runner, make_sequences(true), 1).run(9), alone, 0);
}

TEST_P(Pipeline, APendingTokenIsComputedAgainWithAllBeforeIt) {
  const auto runner = load(GetParam(), "float32");
  const auto alone = Driver(*runner, make_sequences(true), 0).run(256);
  expect_same(Driver(*runner, make_sequences(true), 1).run(256, /*recompute_at_step=*/5), alone,
              1e-3f);
}

TEST_P(Pipeline, AbandonedStepsAreForgotten) {
  const auto runner = load(GetParam(), "float32");
  const auto alone = Driver(*runner, make_sequences(true), 0).run(256);
  for (int num_abandoned = 0; num_abandoned <= 3; ++num_abandoned) {
    Driver abandoned(*runner, make_sequences(false), 1);
    for (int i = 0; i < std::min(num_abandoned, 2); ++i) {
      ASSERT_TRUE(i == 1 && num_abandoned == 2 ? abandoned.submit_only(256)
                                               : abandoned.submit(256));
    }
    runner->abandon();
    expect_same(Driver(*runner, make_sequences(true), 1).run(256), alone, 0);
  }
}

TEST_P(Pipeline, GraphsSampleTheTokensOfEagerSteps) {
  if (GetParam().device == "cpu") GTEST_SKIP() << "the CPU has no graphs";
  for (const bool greedy : {true, false}) {
    const auto eager =
        Driver(*load(GetParam(), "float32", true), make_sequences(greedy), 0).run(256);
    const auto runner = load(GetParam(), "float32");
    // The first run records, the second finds all graphs there.
    expect_same(Driver(*runner, make_sequences(greedy), 1).run(256), eager, 1e-3f);
    expect_same(Driver(*runner, make_sequences(greedy), 1).run(256), eager, 1e-3f);
  }
}

// One sequence's step over `ids`, of which the last num_drafts are drafts.
SequenceInput step_of(const Sequence& sequence, std::span<const int32_t> ids, int num_computed,
                      int num_drafts) {
  const size_t num_known = ids.size() - num_drafts;
  SequenceInput input{.token_ids = ids.first(num_known),
                      .draft_token_ids = ids.last(num_drafts),
                      .num_computed_tokens = num_computed,
                      .num_new_tokens = static_cast<int>(ids.size()) - num_computed,
                      .block_table = sequence.blocks,
                      .sample = true};
  return input;
}

// And its rows.
std::vector<SamplingRow> rows_of(const Sequence& sequence, std::span<const int32_t> ids,
                                 int num_drafts) {
  std::vector<SamplingRow> rows;
  for (size_t position = ids.size() - num_drafts; position <= ids.size(); ++position) {
    rows.push_back(row_of(sequence, ids.first(position), position));
  }
  return rows;
}

TEST_P(Pipeline, DraftsChangeNothingButTheNumberOfSteps) {
  for (const bool greedy : {true, false}) {
    const auto runner = load(GetParam(), "float32");
    const auto expected = Driver(*runner, make_sequences(greedy), 0).run(256);
    std::vector<Sequence> sequences = make_sequences(greedy);
    std::vector<std::vector<SamplingResult>> drawn(sequences.size());
    std::mt19937 rng(3);
    size_t num_drafts = 0, num_accepted = 0;
    for (size_t num_left = sequences.size(); num_left > 0;) {
      std::vector<Ids> ids(sequences.size());  // drafts included
      StepInput input;
      std::vector<size_t> order;
      for (size_t s = 0; s < sequences.size(); ++s) {
        const size_t wanted = expected[s].size() - drawn[s].size();
        if (wanted == 0) continue;
        ids[s] = sequences[s].token_ids;
        // The ones drawn alone, but for one of them at random, where there is one.
        const size_t count = std::min<size_t>(s % 4, wanted - 1), wrong = rng() % 4;
        for (size_t i = 0; i < count; ++i) {
          const int32_t id = expected[s][drawn[s].size() + i].token_id;
          ids[s].push_back(i == wrong ? (id + 1) % 380 : id);
        }
        const SequenceInput one =
            step_of(sequences[s], ids[s], sequences[s].num_computed, static_cast<int>(count));
        const auto place = one.num_new_tokens == 1 ? 0 : order.size();
        input.sequences.insert(input.sequences.begin() + place, one);
        order.insert(order.begin() + place, s);
        num_drafts += count;
      }
      std::vector<SamplingRow> rows;
      for (size_t i = 0; i < order.size(); ++i) {
        const size_t s = order[i];
        const auto num_its_drafts = static_cast<int>(input.sequences[i].draft_token_ids.size());
        std::ranges::copy(rows_of(sequences[s], ids[s], num_its_drafts), std::back_inserter(rows));
      }
      runner->submit(input);
      runner->draw(rows);
      const StepOutput output = runner->collect();
      num_left = 0;
      for (size_t i = 0; i < order.size(); ++i) {
        const size_t s = order[i];
        const auto& sampled = output.sequences[i].sampled;
        ASSERT_GE(sampled.size(), 1U);
        num_accepted += sampled.size() - 1;
        for (const SamplingResult& result : sampled) {
          drawn[s].push_back(result);
          sequences[s].token_ids.push_back(result.token_id);
        }
        sequences[s].num_computed = static_cast<int>(sequences[s].token_ids.size()) - 1;
        if (drawn[s].size() < expected[s].size()) ++num_left;
      }
    }
    expect_same(drawn, expected, GetParam().device == "cpu" ? 0 : 1e-3f);
    EXPECT_GT(num_accepted, 20U);
    EXPECT_GT(num_drafts, num_accepted + 10);
  }
}

TEST_P(Pipeline, EachDrawHasAMaskOfItsOwn) {
  const auto runner = load(GetParam(), "float32");
  for (Sequence& sequence : make_sequences(true)) {
    Ids ids = sequence.token_ids;
    constexpr size_t kWords = 16;  // more than the vocabulary of 380 needs
    // With a mask that lacks one token for the draw of this number.
    const auto draw = [&](int num_drafts, size_t number = 0, int32_t forbidden = 511) {
      StepInput input;
      input.sequences = {step_of(sequence, ids, 0, num_drafts)};
      runner->submit(input);
      std::vector<uint32_t> mask(kWords, ~0u);
      mask[forbidden / 32] &= ~(1u << forbidden % 32);
      std::vector<SamplingRow> rows = rows_of(sequence, ids, num_drafts);
      rows[number].allowed = mask;
      runner->draw(rows);
      std::ranges::fill(mask, 0);  // it was read
      const StepOutput output = runner->collect();
      Ids drawn;
      for (const auto& result : output.sequences[0].sampled) drawn.push_back(result.token_id);
      return drawn;
    };
    const int32_t best = draw(0).at(0);
    ids.push_back(best);
    const Ids two = draw(1);
    ASSERT_EQ(two.size(), 2U);
    EXPECT_EQ(two[0], best);
    const Ids second = draw(1, 1, two[1]);
    ASSERT_EQ(second.size(), 2U);
    EXPECT_EQ(second[0], best);
    EXPECT_NE(second[1], two[1]);
    const Ids first = draw(1, 0, best);
    ASSERT_EQ(first.size(), 1U);  // the draft is no longer what is drawn
    EXPECT_NE(first[0], best);
  }
}

// The forward pass takes the token of the step before from the device, and the draw knows it: each
// second one may be nothing but the next id.
TEST_P(Pipeline, ADrawMayDependOnTheTokenBeforeThatItsForwardPassDidNotKnow) {
  const auto runner = load(GetParam(), "float32");
  for (const Sequence& sequence : make_sequences(false)) {
    const auto generate = [&](bool ahead) {
      Ids ids = sequence.token_ids;
      const auto submit = [&](int num_computed, int pending_from) {
        StepInput input;
        input.sequences = {step_of(sequence, ids, num_computed, 0)};
        input.sequences[0].pending_from = pending_from;
        if (pending_from >= 0) ++input.sequences[0].num_new_tokens;
        runner->submit(input);
      };
      const auto collect = [&] { ids.push_back(runner->collect().results.at(0).token_id); };
      submit(0, -1);
      runner->draw(rows_of(sequence, ids, 0));
      for (int i = 0; i < 6; ++i) {
        if (ahead) submit(static_cast<int>(ids.size()), 0);
        collect();
        if (!ahead) submit(static_cast<int>(ids.size()) - 1, -1);
        std::vector<SamplingRow> rows = rows_of(sequence, ids, 0);
        std::vector<uint32_t> mask(16, 0);
        const int32_t only = (ids.back() + 1) % 380;
        mask[only / 32] |= 1u << only % 32;
        if (i % 2 == 1) rows[0].allowed = mask;
        runner->draw(rows);
      }
      collect();
      return ids;
    };
    const Ids ids = generate(true);
    EXPECT_EQ(ids, generate(false));
    for (int i = 1; i < 6; i += 2) {
      const size_t place = sequence.token_ids.size() + i + 1;
      EXPECT_EQ(ids.at(place), (ids.at(place - 1) + 1) % 380);
    }
  }
}

std::vector<Place> places() {
  std::vector<Place> all = {{"cpu", "cpu"}, {"cpu_2", "cpu", 2}};
#ifdef NANOVLLM_WITH_CUDA
  all.push_back({"cuda", "cuda"});
  all.push_back({"cuda_2", "cuda", 2});
#endif
  return all;
}

INSTANTIATE_TEST_SUITE_P(Places, Pipeline, ::testing::ValuesIn(places()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace nanovllm
