// Random workloads against a model that is a hash of its whole context: whatever the engine does
// (chunks, also those that are short beside decodes, prefix hits, preemption, pipelining, batch
// mates, drafts, several tokens a step), each completion must be what the model generates for it
// alone.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>

#include "base/testing.h"
#include "engine/deltas.h"
#include "engine/fake_runner.h"

namespace nanovllm {
namespace {

constexpr int kVocabSize = 50;
constexpr int kMaxModelLen = 60;
constexpr int kTokensOfBlock = 4;
constexpr int32_t kEos = 0;

struct Expected {
  std::vector<int32_t> token_ids;
  FinishReason reason = FinishReason::kNone;
};

// Each id is a letter: a bad word's tokens are its letters' ids.
char letter_of(int id) { return static_cast<char>(id < 26 ? 'a' + id : 'A' + id - 26); }
int32_t id_of(char letter) { return letter >= 'a' ? letter - 'a' : letter - 'A' + 26; }

std::unique_ptr<const Tokenizer> one_letter_tokens() {
  std::string vocab;
  for (int id = 0; id < kVocabSize; ++id) {
    vocab += fmt::format("{}\"{}\":{}", id == 0 ? "" : ",", letter_of(id), id);
  }
  return Tokenizer::from_json(
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,)"
      R"("pre_tokenizer":null,"post_processor":null,"decoder":null,"model":{"type":"BPE",)"
      R"("dropout":null,"unk_token":null,"continuing_subword_prefix":null,)"
      R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,)"
      R"("ignore_merges":false,"vocab":{)" +
          vocab + R"(},"merges":[]}})",
      "letters");
}

// The last letters of those whose other letters the output ends with.
void append_banned(const std::vector<std::string>& bad_words, const std::vector<int32_t>& output,
                   std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : output) text += letter_of(id);
  for (const std::string& word : bad_words) {
    if (text.ends_with(word.substr(0, word.size() - 1))) ids.push_back(id_of(word.back()));
  }
}

// What the model generates alone, by definition.
Expected generate_alone(std::vector<int32_t> ids, const SamplingParams& params, int index) {
  Expected expected;
  const std::vector<int32_t> prompt = ids;
  std::vector<int32_t> stop_ids = params.stop_token_ids;
  stop_ids.push_back(kEos);
  std::optional<ThinkingBudget> thinking;
  if (params.thinking_tags) thinking.emplace(*params.thinking_tags, *params.thinking_token_budget);
  while (expected.reason == FinishReason::kNone) {
    SamplingRow row;
    row.temperature = static_cast<float>(params.temperature);
    row.seed = params.seed.value_or(0) + index;
    row.position = ids.size();
    row.repetition_penalty = static_cast<float>(params.repetition_penalty);
    row.prompt_ids = prompt;
    row.output_ids = expected.token_ids;
    const auto num_output = static_cast<int>(expected.token_ids.size());
    std::vector<int32_t> banned_ids;
    if (num_output < params.min_tokens) banned_ids = stop_ids;
    append_banned(params.bad_words, expected.token_ids, banned_ids);
    row.banned_ids = banned_ids;
    if (thinking) row.forced_id = thinking->forced_id();
    const int32_t id = FakeModel::sample(FakeModel::fold(ids), row, kVocabSize).token_id;
    ids.push_back(id);
    expected.token_ids.push_back(id);
    if (thinking) thinking->append(id);
    const bool stops =
        std::ranges::count(params.stop_token_ids, id) > 0 || (id == kEos && !params.ignore_eos);
    if (stops && num_output + 1 >= params.min_tokens) {
      expected.reason = FinishReason::kStop;
    } else if (num_output + 1 == params.max_tokens || ids.size() == kMaxModelLen) {
      expected.reason = FinishReason::kLength;
    }
  }
  return expected;
}

class Workload {
 public:
  explicit Workload(uint32_t seed) : rng_(seed) {}

  int pick(int n) { return static_cast<int>(rng_() % static_cast<unsigned>(n)); }
  bool one_in(int n) { return pick(n) == 0; }

  // Half of the prompts continue one of a few beginnings; some are equal as a whole.
  std::vector<int32_t> prompt() {
    std::vector<int32_t> ids;
    if (one_in(2)) {
      const int beginning = pick(3);
      for (int i = 0; i < 4 + 8 * beginning; ++i) ids.push_back(1 + (i * 7 + beginning) % 40);
    }
    const int rest = ids.empty() ? 1 + pick(30) : pick(6);
    for (int i = 0; i < rest; ++i) ids.push_back(1 + pick(2));
    return ids;
  }

  SamplingParams params() {
    SamplingParams p;
    p.temperature = one_in(4) ? 0 : 1;
    if (p.temperature > 0 && one_in(4)) p.n = 2 + pick(3);
    p.seed = rng_();
    p.max_tokens = 1 + pick(20);
    if (one_in(3)) p.min_tokens = pick(p.max_tokens + 1);
    p.ignore_eos = one_in(2);
    if (one_in(3)) p.stop_token_ids = {5, 6, 7};
    if (one_in(4)) p.repetition_penalty = 1.5;
    if (one_in(4)) {
      // Of one letter, and all that begin with one that is drawn once in five tokens.
      for (int i = pick(8); i >= 0; --i) p.bad_words.emplace_back(1, letter_of(pick(kVocabSize)));
      for (int i = one_in(2) ? 500 : 0; i > 0; --i) {
        p.bad_words.push_back({letter_of(pick(10)), letter_of(pick(kVocabSize))});
      }
    }
    if (one_in(4)) {  // of tokens that are drawn once in ten
      p.thinking_token_budget = pick(8);
      p.thinking_tags = ThinkingTags{{pick(5)}, {5 + pick(2), 7 + pick(2)}, pick(3) - 1};
    }
    if (one_in(4)) p.logprobs = pick(3);
    if (one_in(5)) p.prompt_logprobs = pick(3);
    p.output_kind = static_cast<RequestOutputKind>(pick(3));
    return p;
  }

 private:
  std::mt19937 rng_;
};

struct Tracked {
  std::vector<int32_t> prompt;
  SamplingParams params;
  std::map<int, std::vector<int32_t>> expected = {};  // by completion, where drafts were asked for
  RequestOutput total;
  bool aborted = false;
};

void receive(std::map<uint64_t, Tracked>& requests, std::vector<RequestOutput> outputs) {
  for (RequestOutput& output : outputs) {
    Tracked& tracked = requests.at(output.request_id);
    ASSERT_FALSE(tracked.total.finished);
    ASSERT_EQ(output.outputs.size(), static_cast<size_t>(tracked.params.n));
    if (tracked.params.output_kind != RequestOutputKind::kDelta) {
      tracked.total = std::move(output);
    } else {
      append_delta(tracked.total, std::move(output));
    }
  }
}

void check_logprobs(const Tracked& tracked, const CompletionOutput& output) {
  ASSERT_EQ(output.logprobs.size(), tracked.params.logprobs ? output.token_ids.size() : 0);
  std::vector<int32_t> ids = tracked.prompt;
  for (size_t i = 0; i < output.logprobs.size(); ++i) {
    ASSERT_EQ(output.logprobs[i].size(), static_cast<size_t>(*tracked.params.logprobs) + 1);
    ASSERT_EQ(output.logprobs[i][0].token_id, output.token_ids[i]);
    ASSERT_EQ(output.logprobs[i][0].logprob,
              FakeModel::logprob(FakeModel::fold(ids), output.token_ids[i]));
    ids.push_back(output.token_ids[i]);
  }
}

void check_prompt_logprobs(const Tracked& tracked) {
  const auto& got = tracked.total.prompt_logprobs;
  ASSERT_EQ(got.size(), tracked.params.prompt_logprobs ? tracked.prompt.size() : 0);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].has_value(), i > 0);
    if (i == 0) continue;
    const uint64_t context = FakeModel::fold(std::span(tracked.prompt).first(i));
    ASSERT_EQ((*got[i])[0].token_id, tracked.prompt[i]);
    ASSERT_EQ((*got[i])[0].logprob, FakeModel::logprob(context, tracked.prompt[i]));
  }
}

void check(const Tracked& tracked) {
  ASSERT_TRUE(tracked.total.finished);
  ASSERT_EQ(tracked.total.prompt_token_ids, tracked.prompt);
  for (const CompletionOutput& output : tracked.total.outputs) {
    const Expected expected = generate_alone(tracked.prompt, tracked.params, output.index);
    if (output.finish_reason == FinishReason::kAbort) {
      ASSERT_TRUE(tracked.aborted);
      ASSERT_LE(output.token_ids.size(), expected.token_ids.size());
      ASSERT_TRUE(
          std::equal(output.token_ids.begin(), output.token_ids.end(), expected.token_ids.begin()));
    } else {
      ASSERT_EQ(output.token_ids, expected.token_ids);
      ASSERT_EQ(output.finish_reason, expected.reason);
    }
    check_logprobs(tracked, output);
  }
  if (!tracked.aborted) check_prompt_logprobs(tracked);
}

// Up to three drafts of what comes next. Each is right or wrong at random.
std::vector<int32_t> draft(const Sequence& sequence, Tracked& tracked, int most,
                           Workload& workload) {
  const auto [found, is_new] = tracked.expected.try_emplace(sequence.index);
  std::vector<int32_t>& ids = found->second;
  if (is_new) ids = generate_alone(tracked.prompt, tracked.params, sequence.index).token_ids;
  std::vector<int32_t> drafts;
  for (int i = std::min(workload.pick(4), most); i > 0; --i) {
    const size_t next = sequence.output().size() + drafts.size();
    const bool right = next < ids.size() && !workload.one_in(4);
    drafts.push_back(right ? ids[next] : workload.pick(kVocabSize));
  }
  return drafts;
}

// What a step with drafts gives: those that hold and one more, or any number of tokens. And drafts
// of a model, the same one, which draws without penalties and rules, beside those.
enum class DraftKind { kNone, kVerified, kAnyNumber, kOfModel };

// Groups of layers: mostly some that see everything, and some with windows, also of one token.
std::vector<int> random_windows(uint32_t seed) {
  Workload random(seed);
  std::vector<int> windows;
  for (int i = 1 + random.pick(4); i > 0; --i) {
    windows.push_back(random.one_in(3) ? 0 : 1 + random.pick(4) * random.pick(8));
  }
  return windows;
}

// In half of the runs: of as many sequences as may run, or one fewer, in chunks that are shorter or
// longer than blocks.
StatePoolSize random_states(uint32_t seed, int max_num_seqs) {
  Workload random(seed);
  if (random.one_in(2)) return {};
  const int num_logs = std::max(1, max_num_seqs - random.pick(2));
  const int num_kept = random.one_in(2) ? 0 : random.pick(20);
  return {.num_slots = 2 * num_logs + num_kept, .num_logs = num_logs, .chunk = 2 + random.pick(8)};
}

// prefix caching, tokens a step, blocks (if one group sees everything), sequences a step, pipeline
// depth, drafts
using Setup = std::tuple<bool, int, int, int, int, DraftKind>;

class EngineProperty : public ::testing::TestWithParam<Setup> {};

TEST_P(EngineProperty, EveryCompletionIsWhatTheModelGeneratesForItAlone) {
  const auto [caching, max_num_batched_tokens, num_blocks, max_num_seqs, depth, drafts] =
      GetParam();
  const bool of_model = drafts == DraftKind::kOfModel;
  int num_preemptions = 0, num_cached_tokens = 0;
  std::map<size_t, int> num_times_drawn;
  // Each workload comes under both policies.
  for (uint32_t run = 0; run < test::full_or_reduced(8U, 4U); ++run) {
    const uint32_t seed = run / 2;
    const bool has_priorities = run % 2 == 1;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Workload workload(seed), priorities(seed);
    Workload drafting(seed);
    std::vector<int> windows = random_windows(seed + num_blocks + max_num_batched_tokens);
    if (of_model) windows.push_back(0);
    const StatePoolSize states = random_states(seed + num_blocks + max_num_seqs, max_num_seqs);
    std::map<uint64_t, Tracked> requests;
    FunctionDrafter::Function drafter;
    if (drafts != DraftKind::kNone) {
      drafter = [&](const Sequence& sequence, int most) {
        return draft(sequence, requests.at(sequence.request_id), most, drafting);
      };
    }
    const auto blocks_of_longest =
        static_cast<int>(kv_blocks_for(kMaxModelLen - 1, windows, kTokensOfBlock));
    FakeEngine engine = make_fake_engine({.num_blocks = num_blocks - 15 + blocks_of_longest,
                                          .block_size = kTokensOfBlock,
                                          .max_model_len = kMaxModelLen,
                                          .max_num_batched_tokens = max_num_batched_tokens,
                                          .max_num_seqs = max_num_seqs,
                                          .pipeline_depth = depth,
                                          .enable_prefix_caching = caching,
                                          .scheduling_policy = has_priorities ? "priority" : "fcfs",
                                          .max_step_seconds = seed % 2 == 0 ? 0.0 : 20.0,
                                          .step_cost = {.per_token = 1, .per_pair = 0.01},
                                          .kv_windows = windows,
                                          .states = states,
                                          .drafter = drafter,
                                          .other_drafters = std::vector(of_model ? 1 : 0, drafter),
                                          .drafts_itself = of_model},
                                         one_letter_tokens());
    engine.runner->gives_any_number = drafts == DraftKind::kAnyNumber;
    int num_steps = 0;
    while (requests.size() < 60 || !engine.core->is_finished()) {
      for (int arrivals = workload.pick(3); arrivals > 0 && requests.size() < 60; --arrivals) {
        Tracked tracked{.prompt = workload.prompt(), .params = workload.params(), .total = {}};
        if (has_priorities) tracked.params.priority = priorities.pick(3) - 1;
        const uint64_t id = engine.core->add_request(tracked.prompt, tracked.params);
        requests.emplace(id, std::move(tracked));
      }
      if (workload.one_in(12) && !requests.empty()) {
        const auto victim = static_cast<uint64_t>(workload.pick(static_cast<int>(requests.size())));
        requests.at(victim).aborted = true;
        engine.core->abort_request(victim);
      }
      receive(requests, engine.core->step());
      ASSERT_EQ(engine.core->check_integrity(), "");
      ASSERT_LT(++num_steps, 20000) << "the engine does not come to an end";
      const StepStats& step = engine.core->last_step();
      num_preemptions += step.num_preemptions;
      ASSERT_LE(step.num_prefill_tokens + step.num_decode_tokens, max_num_batched_tokens);
      ASSERT_LE(std::ssize(engine.core->last_schedule()), max_num_seqs);
    }
    for (const auto& [id, tracked] : requests) {
      SCOPED_TRACE("request " + std::to_string(id));
      check(tracked);
      num_cached_tokens += tracked.total.num_cached_tokens;
    }
    for (const auto& [count, times] : engine.runner->num_times_drawn) {
      num_times_drawn[count] += times;
    }
  }
  // The workload must have met what it is about.
  if (num_blocks < 20 && max_num_seqs > 2 && max_num_batched_tokens > 2) {
    EXPECT_GT(num_preemptions, test::full_or_reduced(10, 3));
  }
  EXPECT_EQ(num_cached_tokens > 0, caching);
  if (of_model) {
    EXPECT_TRUE(max_num_batched_tokens < 7 || num_times_drawn.size() > 3);
    return;
  }
  for (const auto& [count, times] : num_times_drawn) EXPECT_LE(count, 4U) << times;
  // Drafts take what decodes leave of a step, and blocks in which nothing is cached.
  const int seldom =
      num_blocks < 20 && caching ? test::full_or_reduced(2, 0) : test::full_or_reduced(10, 1);
  if (drafts != DraftKind::kNone && max_num_batched_tokens >= 4 &&
      max_num_batched_tokens > max_num_seqs) {
    for (size_t count = drafts == DraftKind::kAnyNumber ? 0 : 1; count <= 4; ++count) {
      EXPECT_GT(num_times_drawn[count], seldom) << count << " tokens";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Setups, EngineProperty,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(1, 3, 7, 64),
                                            ::testing::Values(15, 18, 200),
                                            ::testing::Values(1, 4, 16), ::testing::Values(0, 1),
                                            ::testing::Values(DraftKind::kNone)));
INSTANTIATE_TEST_SUITE_P(DraftKind, EngineProperty,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(1, 3, 7, 64),
                                            ::testing::Values(15, 200), ::testing::Values(1, 16),
                                            ::testing::Values(0, 1),
                                            ::testing::Values(DraftKind::kVerified,
                                                              DraftKind::kAnyNumber,
                                                              DraftKind::kOfModel)));

}  // namespace
}  // namespace nanovllm
