#include "server/agents/agent_call.h"

#include "server/agents/agents_testing.h"
#include "server/openai/model_families_testing.h"

namespace nanovllm::server {
namespace {

Json asked() {
  return Json::parse(R"({"messages": [{"role": "user", "content": "ab"}],
                         "tools": [{"type": "function", "function": {"name": "f"}}]})");
}

// Writes down what it is to draw.
class Recorder final : public AgentCall {
 public:
  Recorder(const LetterModel& model, bool streams, const AgentOptions& options = {})
      : AgentCall(asked(), model.served, "7", options) {
    stream = streams;
  }
  using AgentCall::blocks;
  using AgentCall::usage;

 private:
  std::string begin() override { return "begin\n"; }
  std::string open(const AnswerBlock& block) override {
    EXPECT_TRUE(block.text.empty());
    EXPECT_EQ(block.index + 1, blocks().size());
    return "open " + kind_of(block) + block.name + "\n";
  }
  std::string grow(const AnswerBlock& block, std::string_view piece) override {
    EXPECT_FALSE(piece.empty());
    EXPECT_TRUE(block.text.ends_with(piece));
    return fmt::format("{}\n", Json(piece).dump());
  }
  std::string close(const AnswerBlock& block) override { return "close " + kind_of(block) + "\n"; }
  std::string end() override { return fmt::format("end {}\n", to_string(finish_reason())); }
  std::string fail(const ApiError& error) override {
    return fmt::format("fail {}\n", error.what());
  }
  std::string whole() override {
    std::string out;
    for (const AnswerBlock& block : blocks()) {
      out += kind_of(block) + block.name + " " + Json(block.text).dump() + "\n";
    }
    return out;
  }
  static std::string kind_of(const AnswerBlock& block) {
    switch (block.kind) {
      case AnswerBlock::Kind::kThought:
        return "thought";
      case AnswerBlock::Kind::kText:
        return "text";
      case AnswerBlock::Kind::kCall:
        return "call ";
    }
    return "";
  }
};

// What a stream tells, as whole() tells it; checks that blocks are opened and closed in order.
std::string blocks_of(const std::string& stream) {
  std::string whole, open, text;
  bool has_begun = false, has_ended = false;
  size_t from = 0;
  for (size_t to = 0; (to = stream.find('\n', from)) != stream.npos; from = to + 1) {
    const std::string line = stream.substr(from, to - from);
    EXPECT_FALSE(has_ended) << stream;
    EXPECT_EQ(has_begun, line != "begin") << stream;
    if (line == "begin") {
      has_begun = true;
    } else if (line.starts_with("open ")) {
      EXPECT_EQ(open, "") << stream;
      open = line.substr(5);
    } else if (line.starts_with('"')) {
      EXPECT_NE(open, "") << stream;
      text += Json::parse(line).get<std::string>();
    } else if (line.starts_with("close ")) {
      EXPECT_NE(open, "") << stream;
      whole += open + " " + Json(std::exchange(text, {})).dump() + "\n";
      open.clear();
    } else {
      EXPECT_TRUE(line.starts_with("end "));
      EXPECT_EQ(open, "");
      has_ended = true;
    }
  }
  EXPECT_TRUE(has_ended) << stream;
  return whole;
}

std::string whole_of(const std::string& text) {
  const BracketModel model;
  Recorder call(model, false);
  return told(call, events_of(text));
}

TEST(AgentCall, CutsAnAnswerIntoBlocksInTheirOrder) {
  EXPECT_EQ(whole_of("<ab>c[f {}]"), "thought \"ab\"\ntext \"c\"\ncall f \"{}\"\n");
  EXPECT_EQ(whole_of("[f {}]c[g 1]d<e>"),
            "call f \"{}\"\ntext \"c\"\ncall g \"1\"\ntext \"d\"\nthought \"e\"\n");
  EXPECT_EQ(whole_of("a<>b"), "text \"ab\"\n");
  EXPECT_EQ(whole_of(""), "");
}

TEST(AgentCall, OpensNoBlockForBlanks) {
  EXPECT_EQ(whole_of(" \n\t"), "");
  EXPECT_EQ(whole_of("<\n\n>\n\n[f {}]\n"), "call f \"{}\"\n");
  EXPECT_EQ(whole_of("<a>\n\n<b>\n\n[f {}]\n[g {}] \n "),
            "thought \"ab\"\ncall f \"{}\"\ncall g \"{}\"\n");
  // Those before words come with them: no text is lost.
  EXPECT_EQ(whole_of("b \n[f {}]\n\nc\n"), "text \"b \\n\"\ncall f \"{}\"\ntext \"\\n\\nc\\n\"\n");
  EXPECT_EQ(whole_of("\n\nb"), "text \"\\n\\nb\"\n");
}

TEST(AgentCall, DropsTheTemplatesBlanksBehindAThought) {
  EXPECT_EQ(whole_of("<a>\n\nb\n\nc"), "thought \"a\"\ntext \"b\\n\\nc\"\n");
  EXPECT_EQ(whole_of("<\n>\n\n b"), "text \"b\"\n");
  EXPECT_EQ(whole_of("<a>[f {}]\nb"), "thought \"a\"\ncall f \"{}\"\ntext \"\\nb\"\n");
}

TEST(AgentCall, MergesWhatComesAtOnceAndTellsItWhenItComes) {
  const BracketModel model;
  Recorder call(model, true);
  const std::vector<EngineEvent> first = {delta(0, "<ab", {1}), delta(0, "c", {2, 3})};
  EXPECT_EQ(call.on_events(0, first), "begin\nopen thought\n\"abc\"\n");
  const std::vector<EngineEvent> nothing = {delta(0, "", {4})};
  EXPECT_EQ(call.on_events(0, nothing), "");
  const std::vector<EngineEvent> second = {delta(0, "d>\n", {5}), delta(0, "\ne", {6})};
  EXPECT_EQ(call.on_events(0, second), "\"d\"\nclose thought\nopen text\n\"e\"\n");
  RequestEnd over = end(0, FinishReason::kLength);
  over.num_cached_tokens = 2;
  const std::vector<EngineEvent> last = {over};
  EXPECT_EQ(call.on_events(0, last), "close text\nend length\n");
  EXPECT_TRUE(call.is_over());
  EXPECT_EQ(call.finish(), "");
  const AgentUsage usage = call.usage();
  EXPECT_EQ(usage.num_tokens, 6u);
  EXPECT_EQ(usage.num_cached_tokens, 2u);
  EXPECT_EQ(usage.num_prompt_tokens, call.requests[0].prompt_token_ids.size());
  EXPECT_EQ(usage.num_reasoning_tokens, 0u);  // the model has no token that ends a thought
}

TEST(AgentCall, CountsTheTokensOfThoughtsWhereATokenEndsThem) {
  BracketModel model;
  model.served.tags.end_of_thought = 9;
  Recorder call(model, false);
  const std::vector<EngineEvent> events = {delta(0, "<ab>", {1, 2, 9}), delta(0, "c", {3}), end(0)};
  told(call, events);
  EXPECT_EQ(call.usage().num_reasoning_tokens, 2u);
}

TEST(AgentCall, ShowsTheFirstCallAloneWhereAsked) {
  const BracketModel model;
  Recorder call(model, false, {.parallel_tool_calls = false});
  EXPECT_EQ(told(call, events_of("[f {}][g {}]a")), "call f \"{}\"\ntext \"a\"\n");
}

TEST(AgentCall, EndsWithWhatWentWrong) {
  const BracketModel model;
  for (const bool streams : {false, true}) {
    Recorder call(model, streams);
    const std::vector<EngineEvent> events = {
        delta(0, "a", {1}), RequestError{.code = ErrorCode::kUnavailable, .message = "gone"}};
    const std::string out = call.on_events(0, events);
    EXPECT_EQ(out, streams ? "begin\nopen text\n\"a\"\nfail gone\n" : "");
    EXPECT_TRUE(call.is_over());
    EXPECT_EQ(call.error()->status(), 503);
    if (streams) {
      EXPECT_EQ(call.finish(), "");
    } else {
      EXPECT_EQ(api_error_of([&] { call.finish(); }).status(), 503);
    }
  }
  Recorder call(model, false);  // of which the engine could make nothing
  const std::vector<EngineEvent> events = {end(0, FinishReason::kAbort, StopReason("NaN"))};
  call.on_events(0, events);
  EXPECT_EQ(call.error()->status(), 500);
  EXPECT_STREQ(call.error()->what(), "NaN");
}

TEST(AgentCall, CutsMaxTokensToWhatIsLeft) {
  BracketModel model;
  const auto max_tokens = [&](std::optional<int64_t> asked) {
    return Recorder(model, false, {.max_tokens = asked}).requests[0].params.max_tokens;
  };
  const int left = 100 - static_cast<int>(Recorder(model, false).usage().num_prompt_tokens);
  EXPECT_EQ(max_tokens(1), 1);
  EXPECT_EQ(max_tokens(left - 1), left - 1);
  for (const std::optional<int64_t> all :
       {std::optional<int64_t>(), {left}, {32'000}, {INT64_MAX}}) {
    EXPECT_EQ(max_tokens(all), kAsManyAsFit);
  }
  model.served.preparer.info.num_kvcache_blocks = 1;  // of 16 tokens, and one that is not fed back
  EXPECT_EQ(max_tokens(32'000), kAsManyAsFit);
  EXPECT_EQ(max_tokens(17 - (100 - left) - 1), 17 - (100 - left) - 1);
}

TEST(AgentCall, TellsHowMuchAPromptIsTooLong) {
  BracketModel model;
  const size_t num_tokens = Recorder(model, false).usage().num_prompt_tokens;
  const auto too_long = [&](int context) {
    model.served.preparer.info.max_model_len = context;
    try {
      Recorder(model, false);
    } catch (const PromptTooLong& error) {
      EXPECT_EQ(error.status(), 400);
      EXPECT_EQ(error.code(), "context_length_exceeded");
      return std::pair(error.num_tokens(), error.most());
    }
    return std::pair<size_t, size_t>();
  };
  const int size = static_cast<int>(num_tokens);
  EXPECT_EQ(too_long(size + 1), (std::pair<size_t, size_t>()));
  EXPECT_EQ(too_long(size), std::pair(num_tokens, num_tokens - 1));  // an answer has a token
  EXPECT_EQ(too_long(size - 1), std::pair(num_tokens, num_tokens - 1));
  EXPECT_EQ(too_long(2), std::pair(num_tokens, size_t{2}));
}

TEST(AgentCall, GivesAModelOfThreeEffortsTheNearest) {
  LetterModel model;
  EXPECT_EQ(effort_for(model.served, "none"), "none");
  EXPECT_EQ(effort_for(model.served, "max"), "max");
  model.served.format = {"openai_gptoss", "openai"};
  for (const auto& [asked, given] : {std::pair("none", "low"),
                                     {"minimal", "low"},
                                     {"low", "low"},
                                     {"medium", "medium"},
                                     {"high", "high"},
                                     {"xhigh", "high"},
                                     {"max", "high"}}) {
    EXPECT_EQ(effort_for(model.served, asked), given);
  }
}

std::string without_blanks(std::string text) {
  constexpr std::string_view kNone = " \t\r\n";
  std::erase_if(text, [&](char c) { return kNone.find(c) != kNone.npos; });
  return text;
}

void expect_same_blocks(const TranscriptCase& c, std::mt19937& random) {
  const TranscriptModel model(c);
  const MarkedText words = marked_text_of(c);
  Recorder first(model.letters, false);
  const std::string whole = told(first, events_of(words, {words.text.size()}));
  // Nothing but blanks is lost, and calls are those that a whole text has.
  const TranscriptAnswer answer = parse_transcript(c, {});
  TranscriptAnswer sum;
  for (const AnswerBlock& block : first.blocks()) {
    if (block.kind == AnswerBlock::Kind::kThought) sum.reasoning += block.text;
    if (block.kind == AnswerBlock::Kind::kText) sum.content += block.text;
    if (block.kind == AnswerBlock::Kind::kCall) sum.calls.emplace_back(block.name, block.text);
    EXPECT_NE(without_blanks(block.text + block.name), "") << c.text;
  }
  EXPECT_EQ(without_blanks(sum.reasoning), without_blanks(answer.reasoning)) << c.text;
  EXPECT_EQ(without_blanks(sum.content), without_blanks(answer.content)) << c.text;
  EXPECT_EQ(sum.calls, answer.calls) << c.text;
  for (const unsigned one_in : {1U, 2U, 5U, 20U}) {
    const auto events = events_of(words, random_cuts(words.text, one_in, random));
    Recorder again(model.letters, false), streamed(model.letters, true);
    ASSERT_EQ(told(again, events, true), whole) << c.text;
    ASSERT_EQ(blocks_of(told(streamed, events, random() % 2 == 0)), whole) << c.text;
  }
}

TEST(AgentCallProperty, AnySplitGivesTheSameBlocksForEachFamily) {
  std::mt19937 random(7);
  for (const Family& family : families()) {
    for (const std::string& text : {family.first, family.second, family.first + family.second}) {
      for (const bool with_tokens : {false, true}) {
        expect_same_blocks({.reasoning_parser = family.format.reasoning_parser,
                            .tool_call_parser = family.format.tool_call_parser,
                            .text = text,
                            .answer = {},
                            .with_tokens = with_tokens},
                           random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(AgentCallProperty, AnySplitOfRandomWordsGivesTheSameBlocks) {
  std::mt19937 random(8);
  const std::vector<std::string> names = reasoning_parsers(), tools = tool_call_parsers();
  for (int round = 0; round < 3000; ++round) {
    TranscriptCase c = {.reasoning_parser = names[random() % names.size()],
                        .tool_call_parser = tools[random() % tools.size()],
                        .text = random_words(random),
                        .answer = {}};
    if ((c.tool_call_parser == "openai") != (c.reasoning_parser == "openai_gptoss")) {
      c.tool_call_parser = "openai";  // these two go with each other only
      c.reasoning_parser = "openai_gptoss";
    }
    c.with_tokens = random() % 2 == 0;
    if (!c.with_tokens) std::erase(c.text, kToken);
    if (random() % 2 == 0) c.prompt = kReasoningOff;
    expect_same_blocks(c, random);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace nanovllm::server
