// Outputs that follow a grammar, in an engine: each is what the model generates alone where every
// token that breaks it is taken away, whatever else the engine does.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <new>
#include <random>
#include <thread>
#include <tuple>

#include "base/testing.h"
#include "engine/constraint_testing.h"

namespace nanovllm {
namespace {

constexpr int kMostTokens = 60;

// What a request is compared with: its grammar, and the texts of tokens.
struct TextReference {
  std::unique_ptr<const Tokenizer> tokenizer = short_texts();
  GrammarCompiler compiler{*tokenizer};

  std::shared_ptr<const Grammar> grammar(const SamplingParams& params) const {
    const auto& asked = params.structured_outputs;
    if (!asked) return nullptr;
    return asked->regex ? compiler.regex(*asked->regex) : compiler.json_schema(*asked->json);
  }
};

struct AloneOutput {
  Ids token_ids;
  FinishReason reason = FinishReason::kNone;
};

bool ends_with_tag(const Ids& ids, const Ids& tag) {
  return ids.size() >= tag.size() && std::equal(tag.rbegin(), tag.rend(), ids.rbegin());
}

// By definition: before each draw every token is tried.
class TextAlone {
 public:
  TextAlone(const TextReference& reference, const SamplingParams& params)
      : params_(params), grammar_(reference.grammar(params)) {
    if (grammar_ != nullptr) state_ = grammar_->start();
    if (params.thinking_tags && params.thinking_token_budget) {
      budget_.emplace(*params.thinking_tags, *params.thinking_token_budget);
    }
    has_thought_ = params.thinking_tags && params.thinking_tags->num_prompt_tokens >= 0;
  }

  AloneOutput generate(const Ids& prompt, int index) {
    Ids text = prompt;
    end_if_stuck();
    while (expected_.reason == FinishReason::kNone) {
      const int32_t id = draw(prompt, text, index);
      if (id < 0) {
        expected_.reason = FinishReason::kAbort;
        break;
      }
      text.push_back(id);
      expected_.token_ids.push_back(id);
      take(id);
      const bool at_length =
          std::ssize(expected_.token_ids) == params_.max_tokens || text.size() == kMostTokens;
      if (expected_.reason == FinishReason::kNone && at_length) {
        expected_.reason = FinishReason::kLength;
      }
    }
    return expected_;
  }

 private:
  bool binds() const { return grammar_ != nullptr && !has_thought_; }
  bool is_early() const { return std::ssize(expected_.token_ids) < params_.min_tokens; }
  bool is_stop(int32_t id) const {
    return std::ranges::count(params_.stop_token_ids, id) > 0 ||
           (id == kEndOfText && !params_.ignore_eos);
  }
  bool may_begin_thought(int32_t id) const {
    return binds() && expected_.token_ids.empty() && params_.thinking_tags &&
           params_.thinking_tags->start_ids == Ids{id};
  }
  bool is_listed(int32_t id) const {
    return !params_.allowed_token_ids || std::ranges::count(*params_.allowed_token_ids, id) > 0;
  }

  std::vector<uint32_t> mask() const {
    std::vector<uint32_t> allowed(2);
    const auto open = [&](int32_t id) { allowed[id / 32] |= 1u << id % 32; };
    int num_open = 0;
    for (int32_t id = 0; id < kNumTokens; ++id) {
      const bool goes_on =
          !binds() || may_begin_thought(id) ||
          (id != kEndOfText && !is_stop(id) && !grammar_->is_dead(grammar_->advance(state_, id)));
      if (!goes_on || !is_listed(id)) continue;
      open(id);
      ++num_open;
    }
    if (binds() && grammar_->is_accepting(state_) && !(is_early() && num_open > 0)) {
      for (int32_t id = 0; id < kNumTokens; ++id) {
        if (is_stop(id) && is_listed(id)) open(id);
      }
    }
    return allowed;
  }
  // "ab" is spelled "a", "b".
  Ids bad_word_ends() const {
    const bool is_open = !params_.bad_words.empty() && ends_with_tag(expected_.token_ids, {1});
    return is_open ? Ids{2} : Ids{};
  }
  // Its text can't go on.
  void end_if_stuck() {
    if (!binds()) return;
    std::vector<uint32_t> left = mask();
    for (const int32_t id : bad_word_ends()) left[id / 32] &= ~(1u << id % 32);
    if (left != std::vector<uint32_t>(2)) return;
    const bool is_complete = grammar_->is_accepting(state_);
    expected_.reason = is_complete ? FinishReason::kStop : FinishReason::kAbort;
  }

  int32_t draw(const Ids& prompt, const Ids& text, int index) {
    const std::vector<uint32_t> allowed = mask();
    Ids banned = bad_word_ends();
    if (is_early() && !binds()) {
      banned.insert(banned.end(), params_.stop_token_ids.begin(), params_.stop_token_ids.end());
      banned.push_back(kEndOfText);
    } else if (grammar_ != nullptr && has_thought_) {
      for (int32_t id = 0; id < kNumTokens; ++id) {
        if (is_stop(id)) banned.push_back(id);
      }
    }
    SamplingRow row;
    row.temperature = static_cast<float>(params_.temperature);
    row.seed = params_.seed.value_or(0) + index;
    row.position = text.size();
    row.repetition_penalty = static_cast<float>(params_.repetition_penalty);
    row.prompt_ids = prompt;
    row.output_ids = expected_.token_ids;
    row.banned_ids = banned;
    row.allowed = allowed;
    if (budget_ && !is_in_text_) row.forced_id = budget_->forced_id();
    return FakeModel::sample(FakeModel::fold(text), row, kNumTokens).token_id;
  }

  void take(int32_t id) {
    const bool ends = is_stop(id) && (binds() || !is_early());
    if (ends) {
      expected_.reason = FinishReason::kStop;
      return;
    }
    if (budget_) budget_->append(id);
    if (grammar_ == nullptr) return;
    if (has_thought_) {
      thought_.push_back(id);
      has_thought_ = !ends_with_tag(thought_, params_.thinking_tags->end_ids);
      is_in_text_ = !has_thought_;
    } else if (expected_.token_ids.size() == 1 && params_.thinking_tags &&
               params_.thinking_tags->start_ids == Ids{id}) {
      has_thought_ = true;
    } else {
      is_in_text_ = true;
      state_ = grammar_->advance(state_, id);
    }
    end_if_stuck();
  }

  const SamplingParams& params_;
  const std::shared_ptr<const Grammar> grammar_;
  GrammarState state_ = 0;
  std::optional<ThinkingBudget> budget_;
  Ids thought_;
  bool has_thought_ = false;
  bool is_in_text_ = false;
  AloneOutput expected_;
};

struct AskedText {
  Ids prompt;
  SamplingParams params;
};

class TextWorkload {
 public:
  explicit TextWorkload(uint32_t seed) : rng_(seed) {}

  int pick(int n) { return static_cast<int>(rng_() % static_cast<unsigned>(n)); }
  bool one_in(int n) { return pick(n) == 0; }

  AskedText request() {
    AskedText asked;
    if (one_in(2)) asked.prompt = prompt_of(12);
    for (int i = 1 + pick(8); i > 0; --i) asked.prompt.push_back(1 + pick(30));
    SamplingParams& p = asked.params;
    p.temperature = one_in(4) ? 0 : 1;
    if (p.temperature > 0 && one_in(4)) p.n = 2 + pick(2);
    p.seed = rng_();
    p.max_tokens = 1 + pick(30);
    if (one_in(3)) p.min_tokens = pick(p.max_tokens + 1);
    p.ignore_eos = one_in(4);
    if (one_in(4)) p.stop_token_ids = {2, 36};
    if (one_in(4)) p.repetition_penalty = 1.5;
    if (!one_in(5)) ask_for_text(p);
    if (one_in(5)) p.bad_words = {"ab"};
    if (one_in(6)) p.allowed_token_ids = Ids{0, 1, 2, 3, 9, 12, 19, 20, 21, 22, 24, 26, 32, 36};
    if (one_in(3)) {
      p.thinking_tags = ThinkingTags{{36}, {37}, pick(3) - 1};
      if (one_in(2)) p.thinking_tags->end_ids = {5 + pick(2), 7};
      if (one_in(4)) p.thinking_tags->start_ids = {1, 36};
      if (one_in(2)) p.thinking_token_budget = pick(6);
    }
    p.output_kind = RequestOutputKind::kCumulative;
    return asked;
  }

 private:
  void ask_for_text(SamplingParams& p) {
    static const char* const kTexts[] = {"(ab|c)*", "[a-d]{2,9}", "a(b|c[x-z])*d",
                                         "[0-9]+(\\.[0-9]+)?", "\\{(a|b)*\\}"};
    static const char* const kSchemas[] = {
        R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "required": ["a"]})",
        R"({"type": "array", "items": {"enum": ["ab", "abc", 12]}})"};
    auto& asked = p.structured_outputs.emplace();
    if (one_in(3)) {
      asked.json = kSchemas[pick(2)];
    } else {
      asked.regex = kTexts[pick(5)];
    }
  }

  std::mt19937 rng_;
};

// caching, tokens a step, blocks, pipeline depth, drafts
using StructuredSetup = std::tuple<bool, int, int, int, bool>;

class Structured : public ::testing::TestWithParam<StructuredSetup> {
 protected:
  // What each completion is to be.
  const AloneOutput& expected(const AskedText& asked, int index) {
    const auto [found, is_new] = known_.try_emplace({&asked, index});
    if (is_new) {
      found->second = TextAlone(reference_, asked.params).generate(asked.prompt, index);
    }
    return found->second;
  }
  // Up to three drafts of what comes next, each right or wrong at random.
  Ids draft(const Sequence& sequence, const AskedText& asked, int most, TextWorkload& workload) {
    const Ids& ids = expected(asked, sequence.index).token_ids;
    Ids drafts;
    for (int i = std::min(workload.pick(4), most); i > 0; --i) {
      const size_t next = sequence.output().size() + drafts.size();
      const bool is_right = next < ids.size() && !workload.one_in(4);
      drafts.push_back(is_right ? ids[next] : workload.pick(kNumTokens));
    }
    return drafts;
  }

  const TextReference reference_ = {};
  std::map<std::pair<const AskedText*, int>, AloneOutput> known_;
};

TEST_P(Structured, EveryCompletionIsWhatTheModelGeneratesForItAlone) {
  const auto [caching, max_num_batched_tokens, num_blocks, depth, has_drafts] = GetParam();
  std::map<FinishReason, int> reasons;
  int num_preemptions = 0, num_cached_tokens = 0, num_errors = 0;
  for (uint32_t seed = 0; seed < test::full_or_reduced(6U, 2U); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    known_.clear();
    TextWorkload workload(seed), drafting(seed);
    std::vector<AskedText> asked;
    for (int i = 0; i < 40; ++i) asked.push_back(workload.request());
    std::map<uint64_t, const AskedText*> requests;
    FakeEngineOptions options{.num_blocks = num_blocks,
                              .max_model_len = kMostTokens,
                              .max_num_batched_tokens = max_num_batched_tokens,
                              .pipeline_depth = depth,
                              .enable_prefix_caching = caching};
    if (has_drafts) {
      options.drafter = [&](const Sequence& sequence, int most) {
        return draft(sequence, *requests.at(sequence.request_id), most, drafting);
      };
    }
    FakeEngine engine = make_fake_engine(options, short_texts());
    engine.runner->fail_at_step = 20;
    engine.runner->fail_at_draw = 30;
    std::map<uint64_t, RequestOutput> last;
    size_t next = 0;
    for (int step = 0; next < asked.size() || !engine.core->is_finished(); ++step) {
      ASSERT_LT(step, 20000) << "the engine does not come to an end";
      for (int arrivals = workload.pick(8); arrivals > 0 && next < asked.size(); --arrivals) {
        const AskedText& one = asked[next++];
        requests[engine.core->add_request(one.prompt, one.params)] = &one;
      }
      try {
        for (RequestOutput& output : engine.core->step()) {
          last[output.request_id] = std::move(output);
        }
      } catch (const Error& error) {
        ASSERT_STREQ(error.what(), "The device is on fire.");
        ++num_errors;
      }
      ASSERT_EQ(engine.core->check_integrity(), "");
      num_preemptions += engine.core->last_step().num_preemptions;
    }
    for (const auto& [id, one] : requests) {
      SCOPED_TRACE("request " + std::to_string(id));
      num_cached_tokens += last.at(id).num_cached_tokens;
      for (const CompletionOutput& output : last.at(id).outputs) {
        const AloneOutput& alone = expected(*one, output.index);
        ASSERT_EQ(output.token_ids, alone.token_ids);
        ASSERT_EQ(output.finish_reason, alone.reason);
        ++reasons[alone.reason];
      }
    }
  }
  // The workload must have met what it is about.
  EXPECT_GT(num_errors, 2);
  if (num_blocks < 20 && max_num_batched_tokens > 3) {
    EXPECT_GT(num_preemptions, 4);
  }
  EXPECT_EQ(num_cached_tokens > 0, caching);
  for (const auto reason : {FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort}) {
    EXPECT_GT(reasons[reason], 4);
  }
}

INSTANTIATE_TEST_SUITE_P(Setups, Structured,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(3, 64),
                                            ::testing::Values(18, 200), ::testing::Values(0, 1),
                                            ::testing::Bool()));

class StructuredEngine : public ::testing::TestWithParam<int> {
 protected:
  FakeEngine make(FakeEngineOptions options = {}) const {
    options.pipeline_depth = GetParam();
    return make_fake_engine(options, short_texts());
  }
};
INSTANTIATE_TEST_SUITE_P(PipelineDepth, StructuredEngine, ::testing::Values(0, 1));

TEST_P(StructuredEngine, ATextEndsWithTheEndOfTextWhereItMay) {
  FakeEngine engine = make();
  const auto output =
      run_one(*engine.core, prompt_of(9), with_regex(greedy(20), "ab12")).outputs[0];
  EXPECT_EQ(output.text, "ab12");
  EXPECT_EQ(output.token_ids.back(), kEndOfText);
  EXPECT_EQ(output.finish_reason, FinishReason::kStop);
}

TEST_P(StructuredEngine, ATextThatNothingCanEndEndsWhereItIsComplete) {
  for (const bool ignores_eos : {false, true}) {
    SamplingParams params = with_regex(greedy(20), "ab12");
    params.ignore_eos = ignores_eos;
    FakeEngine engine = make({.eos_token_ids = ignores_eos ? Ids{0} : Ids{}});
    const auto output = run_one(*engine.core, prompt_of(9), params).outputs[0];
    EXPECT_EQ(output.text, "ab12");
    EXPECT_NE(output.token_ids.back(), kEndOfText);
    EXPECT_EQ(output.finish_reason, FinishReason::kStop);
    EXPECT_EQ(output.stop_reason, StopReason());
  }
}

TEST_P(StructuredEngine, MinTokensGiveWayToACompleteText) {
  FakeEngine engine = make();
  SamplingParams params = with_regex(greedy(20), "ab?");
  params.min_tokens = 15;
  const auto output = run_one(*engine.core, prompt_of(9), params).outputs[0];
  EXPECT_EQ(output.text, "ab");  // as long as it may be
  EXPECT_EQ(output.finish_reason, FinishReason::kStop);
}

TEST_P(StructuredEngine, AThoughtEndsWithItsTagAlone) {
  FakeEngine engine = make();
  constexpr int32_t kEndOfThought = 37, kAb = 24, k12 = 26, kStop = 40;
  size_t longest = 0;
  for (int64_t seed = 0; seed < 20; ++seed) {
    SamplingParams params = with_regex(random(60, seed), "ab12");
    params.thinking_tags = ThinkingTags{{36}, {kEndOfThought}, 0};
    params.stop_token_ids = {kStop};
    params.allowed_token_ids = Ids{kEndOfText, kStop, kEndOfThought, kAb, k12};
    const auto output = run_one(*engine.core, prompt_of(9), params).outputs[0];
    EXPECT_EQ(output.finish_reason, FinishReason::kStop);
    const auto end = std::ranges::find(output.token_ids, kEndOfThought);
    for (const int32_t id : {kEndOfText, kStop}) {
      EXPECT_EQ(std::find(output.token_ids.begin(), end, id), end);
    }
    ASSERT_EQ(output.token_ids.end() - end, 4);
    EXPECT_EQ(Ids(end + 1, end + 3), (Ids{kAb, k12}));
    longest = std::max(longest, static_cast<size_t>(end - output.token_ids.begin()));
  }
  EXPECT_GT(longest, 3u);
  SamplingParams params = with_regex(greedy(20), "ab12");
  params.thinking_tags = ThinkingTags{{36}, {kEndOfThought}, 0};
  EXPECT_THROW(engine.core->add_request(prompt_of(9), params, {{kAb, kEndOfText}}), Error);
}

TEST_P(StructuredEngine, AStateWithoutTokensEndsItsOwnCompletion) {
  FakeEngine engine = make();
  const uint64_t stuck = engine.core->add_request(prompt_of(9), with_regex(greedy(20), "ab(x|y)"));
  const uint64_t other = engine.core->add_request(prompt_of(9), greedy(20));
  const auto outputs = run(*engine.core);
  const CompletionOutput& output = outputs.at(stuck).outputs[0];
  EXPECT_EQ(output.text, "ab");
  EXPECT_EQ(output.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(output.stop_reason,
            StopReason("the grammar leaves no token to draw: none of the vocabulary that is "
                       "allowed goes on with this text"));
  EXPECT_EQ(outputs.at(other).outputs[0].token_ids, greedy_tokens(prompt_of(9), 20));
}

TEST_P(StructuredEngine, AnOutgrownAutomatonEndsItsOwnCompletion) {
  FakeEngine engine = make();
  SamplingParams params = greedy(20);
  params.ignore_eos = false;
  params.structured_outputs.emplace().grammar = R"(root ::= "{" root? "}")";
  // Another request made the automaton as large as it may be, and never closed a brace.
  CheckedRequest request = engine.core->preparer().check(
      {.prompt_token_ids = prompt_of(9), .params = params, .previous_output_ids = {{19, 19, 20}}});
  const Grammar& grammar = *request->grammar;
  GrammarState state = grammar.start();
  while (!grammar.is_dead(state)) state = grammar.advance(state, std::string_view("{"));
  ASSERT_TRUE(grammar.is_outgrown(state));
  const uint64_t id = engine.core->add_request(std::move(request), "");
  const uint64_t fine = engine.core->add_request(prompt_of(9), greedy(20));
  const auto outputs = run(*engine.core);
  EXPECT_EQ(outputs.at(id).outputs[0].finish_reason, FinishReason::kAbort);
  EXPECT_EQ(outputs.at(id).outputs[0].stop_reason, StopReason(Grammar::outgrown_message()));
  EXPECT_EQ(outputs.at(fine).outputs[0].token_ids, greedy_tokens(prompt_of(9), 20));
}

// Every letter doubles the ways to go on: somewhere no mask can be made any more, though each byte
// still leads to a state.
TEST_P(StructuredEngine, AnAutomatonOutgrownByAMaskSaysSo) {
  SamplingParams params = greedy(40);
  params.ignore_eos = false;
  params.structured_outputs.emplace().grammar =
      R"(root ::= [a-zA-Z ,.] root "1" | [a-zA-Z ,.] root "2" | "0")";
  int num_outgrown = 0;
  for (size_t given = 1; given < 13; ++given) {  // of more, the letters themselves are too many
    FakeEngine engine = make();
    const Ids previous(given, 1);
    engine.core->add_request(prompt_of(9), params, {previous});
    const auto output = run(*engine.core).at(0).outputs[0];
    if (output.finish_reason != FinishReason::kAbort) continue;
    EXPECT_EQ(output.stop_reason, StopReason(Grammar::outgrown_message())) << given;
    ++num_outgrown;
  }
  EXPECT_GT(num_outgrown, 0);
}

TEST_P(StructuredEngine, OutputThatDoesNotFollowIsNotTaken) {
  FakeEngine engine = make();
  const auto refusal = [&](const Ids& previous) -> std::string {
    try {
      engine.core->add_request(prompt_of(9), with_regex(greedy(20), "ab12"), {previous});
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal({24, 9}),
            "Output id 9 of completion 0 does not follow its structured_outputs.");
  EXPECT_EQ(refusal({24, 10}), "");
  EXPECT_EQ(run(*engine.core).at(0).outputs[0].text, "ab12");
}

TEST_P(StructuredEngine, GoesOnWhereAnotherEngineEnded) {
  const SamplingParams params =
      with_regex(random(50, 7), R"(\{"a":[0-9]{3,9},"b":\[(ab|12)(,(ab|12)){0,3}\]\})");
  FakeEngine first = make();
  const auto whole = run_one(*first.core, prompt_of(9), params).outputs[0];
  EXPECT_EQ(whole.finish_reason, FinishReason::kStop) << whole.text;
  for (size_t given = 0; given < whole.token_ids.size(); ++given) {
    FakeEngine engine = make();
    const Ids previous(whole.token_ids.begin(),
                       whole.token_ids.begin() + static_cast<ptrdiff_t>(given));
    const uint64_t id = engine.core->add_request(prompt_of(9), params, {previous});
    const auto output = run(*engine.core).at(id).outputs[0];
    EXPECT_EQ(output.token_ids, whole.token_ids) << given;
    EXPECT_EQ(output.text, whole.text);
  }
}

TEST(StructuredPipeline, StepsRunAheadAndDrawsWaitForTheStepBefore) {
  const auto counts = [](const SamplingParams& params) {
    FakeEngine engine = make_fake_engine({.pipeline_depth = 1}, short_texts());
    engine.core->add_request(prompt_of(9), params);
    for (int i = 0; i < 5; ++i) engine.core->step();
    return std::pair(engine.runner->num_steps, engine.runner->num_drawn_ahead);
  };
  EXPECT_EQ(counts(greedy(20)), std::pair(6, 5));
  EXPECT_EQ(counts(with_regex(greedy(20), "[a-h]{20}")), std::pair(6, 0));
  SamplingParams listed = greedy(20);
  listed.allowed_token_ids = Ids{1, 2, 3};
  EXPECT_EQ(counts(listed), std::pair(6, 5));
  SamplingParams thinking = with_regex(greedy(20), "[a-h]{20}");
  thinking.thinking_tags = ThinkingTags{{47}, {47, 48, 49}, 0};
  EXPECT_EQ(counts(thinking), std::pair(6, 5));
}

// Draws of one step: their masks, where many and where few.
class MaskRecorder : public Reciter {
 public:
  explicit MaskRecorder(std::vector<std::vector<uint32_t>>& masks)
      : Reciter(Ids(100, 1), 400), masks_(masks) {}
  void draw(std::span<const SamplingRow> rows) override {
    masks_.clear();
    for (const SamplingRow& row : rows) {
      masks_.emplace_back(row.allowed.begin(), row.allowed.end());
      EXPECT_NE(row.allowed_key, 0U);
    }
    Reciter::draw(rows);
  }

 private:
  std::vector<std::vector<uint32_t>>& masks_;
};

TEST(StructuredPipeline, ManyMasksAreThoseThatAreMadeOneByOne) {
  const TextReference reference = {};
  for (const int count : {1, MaskPool::kMostAlone, MaskPool::kMostAlone + 1, 200}) {
    std::vector<std::vector<uint32_t>> masks;
    EngineParts parts;
    parts.config.max_num_seqs = 256;
    parts.config.max_num_batched_tokens = 4096;
    parts.info.max_model_len = 100;
    parts.info.vocab_size = kNumTokens;
    parts.runner = std::make_unique<MaskRecorder>(masks);
    parts.tokenizer = short_texts();
    parts.eos_token_ids = {kEndOfText};
    EngineCore core(std::move(parts));
    const auto text_of = [](int i) { return fmt::format("({}|[a-h]{{{}}})", i, 1 + i); };
    for (int i = 0; i < count; ++i) {
      core.add_request(prompt_of(3), with_regex(greedy(5), text_of(i)));
    }
    core.step();
    ASSERT_EQ(std::ssize(masks), count);
    for (int i = 0; i < count; ++i) {
      std::vector<uint32_t> words(2);
      const auto grammar = reference.compiler.regex(text_of(i));
      grammar->fill_mask(grammar->start(), words);
      EXPECT_EQ(masks[i], words) << i;
    }
  }
}

TEST(MaskPoolTest, CallsEveryTaskOnceAndThrowsWhatOneThrows) {
  MaskPool pool;
  EXPECT_EQ(pool.num_threads(), 1);
  for (const int count : {0, 1, MaskPool::kMostAlone, MaskPool::kMostAlone + 1, 1000}) {
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int>> calls(count);
      pool.run(count, [&](int i) { ++calls[i]; });
      for (const auto& number : calls) ASSERT_EQ(number, 1);
    }
    EXPECT_EQ(pool.num_threads() == 1,
              count <= MaskPool::kMostAlone || std::thread::hardware_concurrency() == 1);
  }
  EXPECT_LE(pool.num_threads(), MaskPool::kMaxThreads);
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(pool.run(100,
                          [](int i) {
                            if (i % 10 == 3) throw std::bad_alloc();
                          }),
                 std::bad_alloc);
  }
  int num_calls = 0;
  pool.run(3, [&](int) { ++num_calls; });
  EXPECT_EQ(num_calls, 3);
}

TEST(MaskPoolTest, ItsThreadsLeaveSignalsToTheProgram) {
  if (std::thread::hardware_concurrency() == 1) GTEST_SKIP() << "one core has no use for threads";
  MaskPool pool;
  const auto caller = std::this_thread::get_id();
  std::atomic<int> num_of_others = 0, num_open = 0;
  for (int round = 0; round < 100 && num_of_others == 0; ++round) {
    pool.run(100, [&](int) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      if (std::this_thread::get_id() == caller) return;
      ++num_of_others;
      sigset_t blocked;
      pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
      for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
        if (sigismember(&blocked, signal) == 0) ++num_open;
      }
    });
  }
  EXPECT_GT(num_of_others, 0);
  EXPECT_EQ(num_open, 0);
}

}  // namespace
}  // namespace nanovllm
