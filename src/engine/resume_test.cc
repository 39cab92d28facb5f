// Requests that begin with output that another engine gave: whenever engines die, what their users
// have seen in the end is what one engine would have shown them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/deltas.h"
#include "engine/engine_test_support.h"

namespace nanovllm {
namespace {

constexpr int kNumLetters = 6;

// So few that stop strings begin and end often: <eos>, a, b, a blank, and the two bytes of "é".
std::unique_ptr<const Tokenizer> few_letters() {
  return byte_level_tokenizer(R"("<eos>":0,"a":1,"b":2,"Ġ":3,"Ã":4,"©":5)");
}

struct Asked {
  Ids prompt;
  SamplingParams params;
};

// What its user has seen.
struct Seen {
  std::vector<CompletionOutput> outputs;
  std::vector<std::optional<PositionLogprobs>> prompt_logprobs;
  bool finished = false;

  void add(RequestOutput&& output) {
    finished = output.finished;
    if (!output.prompt_logprobs.empty()) {
      EXPECT_TRUE(prompt_logprobs.empty()) << "shown twice";
      prompt_logprobs = std::move(output.prompt_logprobs);
    }
    outputs.resize(output.outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      CompletionOutput& from = output.outputs[i];
      CompletionOutput& to = outputs[i];
      if (to.finish_reason != FinishReason::kNone) {
        EXPECT_EQ(from.finish_reason, to.finish_reason);
        EXPECT_EQ(from.text, "");
        EXPECT_TRUE(from.token_ids.empty());
      }
      append_delta(to, std::move(from));
    }
  }
  std::vector<Ids> ids() const {
    std::vector<Ids> ids;
    for (const CompletionOutput& output : outputs) ids.push_back(output.token_ids);
    return ids;
  }
};

class CutWorkload {
 public:
  explicit CutWorkload(uint32_t seed) : rng_(seed) {}

  int pick(int n) { return static_cast<int>(rng_() % static_cast<unsigned>(n)); }
  bool one_in(int n) { return pick(n) == 0; }

  Asked request() {
    Asked asked;
    for (int i = pick(12); i >= 0; --i) asked.prompt.push_back(1 + pick(5));
    SamplingParams& p = asked.params;
    p.output_kind = RequestOutputKind::kDelta;
    p.temperature = one_in(4) ? 0 : 1;
    if (p.temperature > 0 && one_in(3)) p.n = 2 + pick(3);
    p.seed = rng_();
    p.max_tokens = 1 + pick(40);
    if (one_in(3)) p.min_tokens = pick(p.max_tokens + 1);
    p.ignore_eos = !one_in(3);
    if (one_in(6)) p.stop_token_ids = {1 + pick(5)};
    for (int i = one_in(3) ? 0 : pick(4); i > 0; --i) p.stop.push_back(text());
    p.include_stop_str_in_output = one_in(2);
    p.skip_special_tokens = one_in(2);
    if (one_in(2)) p.marked_token_ids = {0, 1};
    if (one_in(3)) p.repetition_penalty = 1.5;
    if (one_in(4)) p.bad_words = {"ab"};
    if (one_in(3)) {
      p.thinking_token_budget = pick(8);
      p.thinking_tags = ThinkingTags{{1}, {2, 4}, pick(4) - 1};
    }
    if (one_in(3)) p.logprobs = pick(3);
    if (one_in(4)) p.prompt_logprobs = pick(3);
    if (one_in(3)) {
      static constexpr const char* kRegexes[] = {"(ab|é| )*a", "[ab]{2,9}( é)?", "b?a*(x|b)"};
      p.structured_outputs.emplace().regex = kRegexes[pick(3)];
    }
    return asked;
  }
  FakeEngine engine() {
    return make_fake_engine({.num_blocks = 16 + pick(30),
                             .vocab_size = kNumLetters,
                             .max_model_len = 45,
                             .max_num_batched_tokens = 1 + pick(20),
                             .max_num_seqs = 1 + pick(12),
                             .pipeline_depth = pick(2),
                             .enable_prefix_caching = one_in(2)},
                            few_letters());
  }

 private:
  std::string text() {
    static constexpr const char* kLetters[] = {"a", "b", " ", "é"};
    std::string text;
    for (int i = 2 + pick(4); i > 0; --i) text += kLetters[pick(4)];
    return text;
  }
  std::mt19937 rng_;
};

// Lets the engine run for so many steps; false when it came to its end.
bool run_steps(EngineCore& core, int num_steps, std::map<uint64_t, Seen*>& users) {
  for (int i = 0; i < num_steps && !core.is_finished(); ++i) {
    for (RequestOutput& output : core.step()) {
      const uint64_t id = output.request_id;
      users.at(id)->add(std::move(output));
    }
    EXPECT_EQ(core.check_integrity(), "");
  }
  return !core.is_finished();
}

TEST(Resume, ShowsWhatOneEngineWouldHaveShownWheneverEnginesDie) {
  int num_deaths = 0, num_told_again = 0, num_stop_texts = 0;
  int64_t num_marks = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    CutWorkload workload(seed);
    std::vector<Asked> asked(8);
    for (Asked& one : asked) one = workload.request();
    std::vector<Seen> whole(asked.size()), pieces(asked.size());

    std::map<uint64_t, Seen*> users;
    FakeEngine engine = workload.engine();
    for (size_t i = 0; i < asked.size(); ++i) {
      users[engine.core->add_request(asked[i].prompt, asked[i].params)] = &whole[i];
    }
    ASSERT_FALSE(run_steps(*engine.core, 100000, users));

    int num_lives = 0;  // later ones are longer, so that the last one comes
    for (bool alive = true; alive; ++num_lives) {
      engine = workload.engine();
      users.clear();
      for (size_t i = 0; i < asked.size(); ++i) {
        if (pieces[i].finished && !workload.one_in(3)) continue;
        num_told_again += pieces[i].finished;
        pieces[i].finished = false;
        users[engine.core->add_request(asked[i].prompt, asked[i].params, pieces[i].ids())] =
            &pieces[i];
      }
      alive = run_steps(*engine.core, 1 + workload.pick(30 + 10 * num_lives), users);
      num_deaths += alive;
    }

    for (size_t i = 0; i < asked.size(); ++i) {
      SCOPED_TRACE(fmt::format("request {}", i));
      ASSERT_TRUE(pieces[i].finished);
      EXPECT_EQ(pieces[i].prompt_logprobs, whole[i].prompt_logprobs);
      ASSERT_EQ(pieces[i].outputs.size(), whole[i].outputs.size());
      for (size_t k = 0; k < whole[i].outputs.size(); ++k) {
        const CompletionOutput& got = pieces[i].outputs[k];
        const CompletionOutput& expected = whole[i].outputs[k];
        EXPECT_EQ(got.token_ids, expected.token_ids);
        EXPECT_EQ(got.text, expected.text);
        EXPECT_EQ(got.marks, expected.marks);
        num_marks += std::ssize(expected.marks);
        EXPECT_EQ(got.logprobs, expected.logprobs);
        EXPECT_EQ(got.finish_reason, expected.finish_reason);
        EXPECT_EQ(got.stop_reason, expected.stop_reason);
        num_stop_texts += std::holds_alternative<std::string>(expected.stop_reason);
      }
    }
  }
  // The workload must have met what it is about.
  EXPECT_GT(num_deaths, 600);
  EXPECT_GT(num_told_again, 200);
  EXPECT_GT(num_stop_texts, 100);
  EXPECT_GT(num_marks, 1000);
}

TEST(Resume, TellsEverythingWhereAllOfTheOutputIsAskedFor) {
  FakeEngine engine = make_fake_engine();
  const Ids expected = greedy_tokens(prompt_of(9), 12);
  SamplingParams params = greedy(12);
  params.logprobs = 1;
  const Ids previous(expected.begin(), expected.begin() + 5);
  const uint64_t id = engine.core->add_request(prompt_of(9), params, {previous});
  const RequestOutput output = run(*engine.core).at(id);
  EXPECT_EQ(output.prompt_token_ids, prompt_of(9));
  EXPECT_EQ(output.outputs[0].token_ids, expected);
  ASSERT_EQ(output.outputs[0].logprobs.size(), 12u);
  EXPECT_EQ(output.outputs[0].logprobs[4].size(), 0u);
  EXPECT_EQ(output.outputs[0].logprobs[5].size(), 2u);
}

std::string refusal(const SamplingParams& params, const std::vector<Ids>& previous) {
  FakeEngine engine = make_fake_engine();
  try {
    engine.core->add_request(prompt_of(9), params, previous);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_TRUE(engine.core->is_finished());
    EXPECT_EQ(run_one(*engine.core, prompt_of(9), greedy(3)).outputs[0].token_ids,
              greedy_tokens(prompt_of(9), 3));
    return error.what();
  }
  EXPECT_FALSE(engine.core->is_finished());
  run(*engine.core);
  return "";
}

TEST(Resume, RefusesOutputThatItCanNotHaveGenerated) {
  EXPECT_EQ(refusal(greedy(3), {{1, 2, 3}}), "");
  EXPECT_EQ(refusal(greedy(3), {{1, 2, 3, 4}}),
            "Completion 0 has 4 output ids, but token 3 ends it.");
  EXPECT_EQ(refusal(greedy(3), {{49}}), "");
  EXPECT_EQ(refusal(greedy(3), {{50}}),
            "Output id 50 of completion 0 is out of vocabulary; the model knows 0 to 49.");
  EXPECT_EQ(refusal(greedy(3), {{0, -1}}),
            "Output id -1 of completion 0 is out of vocabulary; the model knows 0 to 49.");
  SamplingParams two = random(3);
  two.n = 2;
  EXPECT_EQ(refusal(two, {{1}, {2}}), "");
  EXPECT_EQ(refusal(two, {{}, {2}}), "");
  EXPECT_EQ(refusal(two, {{1}, {2}, {}}),
            "There are output ids of 3 completions, but the request has n = 2.");
}

}  // namespace
}  // namespace nanovllm
