// Transcripts whose tags are tokens, and random ones.
#include <fmt/format.h>

#include "server/transcript/transcript_testing.h"

namespace nanovllm::server {
namespace {

// Tags that are tokens: the same characters made of others are text.
std::vector<TranscriptCase> token_cases() {
  const std::string t(1, kToken);
  const std::string open = t + "<tool_call>", close = t + "</tool_call>";
  const std::string call = R"({"name": "f", "arguments": {"x": "</tool_call>"}})";
  const TranscriptCalls one = {{"f", R"({"x": "</tool_call>"})"}};
  std::vector<TranscriptCase> cases;
  const auto add = [&](const char* reasoning, const char* tools, const std::string& text,
                       const TranscriptAnswer& answer) {
    cases.push_back({.reasoning_parser = reasoning,
                     .tool_call_parser = tools,
                     .text = text,
                     .answer = answer,
                     .with_tokens = true});
  };
  for (const char* name : {"qwen3", "deepseek_r1"}) {
    add(name, "", t + "<think>a</think>b" + t + "</think>c", {"a</think>b", "c"});
    add(name, "", "<think>a" + t + "</think>b", {"<think>a", "b"});
    add(name, "", t + "<think>" + t + "<think>a" + t + "</think>" + t + "</think>" + t + "<think>b",
        {"<think>a", "</think><think>b"});
    add(name, "", t + "</think>x.replace('</think>', '')", {"", "x.replace('</think>', '')"});
    add(name, "", "a</think", {"a</think", ""});
  }
  add("", "hermes", open + call + close, {"", "", one});
  add("", "hermes", "<tool_call>" + call + "</tool_call>" + open + "\n" + call + "\n" + close + "b",
      {"", "<tool_call>" + call + "</tool_call>b", one});
  add("", "hermes", open + call + "</tool_call>", {"", "</tool_call>", one});
  add("", "hermes", open + "a</tool_call>b" + close, {"", "<tool_call>a</tool_call>b</tool_call>"});
  add("qwen3", "hermes", "x<tool_call>" + call + open + call + close,
      {"x<tool_call>" + call, "", one});
  add("qwen3", "hermes", "x" + open + call + close + "</think>", {"x", "</think>", one});
  add("qwen3", "hermes", "x" + open + call + close + t + "</think>y",
      {"x<tool_call>" + call + "</tool_call>", "y"});
  add("", "llama3_json", "a<|python_tag|>{}" + t + R"(<|python_tag|>{"name":"f","parameters":{}})",
      {"", "a<|python_tag|>{}", {{"f", "{}"}}});
  add("", "mistral", "[TOOL_CALLS]f{}" + t + "[TOOL_CALLS]f{\"x\": \"[TOOL_CALLS]\"}",
      {"", "[TOOL_CALLS]f{}", {{"f", "{\"x\": \"[TOOL_CALLS]\"}"}}});
  return cases;
}

TEST(TranscriptParser, TakesTokensForTagsWhereTheTagsAreTokens) {
  std::mt19937 random(3);
  for (const TranscriptCase& c : token_cases()) {
    EXPECT_EQ(parse_transcript(c, {}), c.answer) << c.text;
    expect_same_for_all_cuts(c, c.answer, random);
  }
}

TEST(TranscriptParser, TakesAMarkWithoutItsTextForText) {
  const TranscriptTags tags = {.ids = {{"<think>", 1}, {"</think>", 2}}};
  const std::vector<TokenMark> marks = {{1, 2}, {4, 3}, {90, 2}};
  const auto parser = make_transcript_parser({"qwen3", ""}, tags, "", &no_schemas());
  EXPECT_EQ(parser->append("ab</think>c", marks), (TranscriptDelta{"ab</think>c", "", {}}));
  EXPECT_EQ(parser->finish(), TranscriptDelta{});
}

const std::vector<std::string>& transcript_tag_pieces() {
  static const std::vector<std::string> tags = {
      "<think>",       "</think>",         "<tool_call>",       "</tool_call>",
      "[TOOL_CALLS]",  "<|python_tag|>",   "[THINK]",           "[/THINK]",
      "<|tool_call|>", "<function_calls>", "</function_calls>", "<|start|>",
      "<|channel|>",   "<|message|>",      "<|end|>",           "<|call|>"};
  return tags;
}

TranscriptCase random_transcript(const std::vector<std::string>& pieces, std::mt19937& random) {
  TranscriptCase c;
  std::vector<std::string> names = reasoning_parsers();
  names.back().clear();  // that of channels goes with one other only
  c.reasoning_parser = names[random() % names.size()];
  c.tool_call_parser = tool_call_parsers()[random() % tool_call_parsers().size()];
  if (c.tool_call_parser == "openai") c.reasoning_parser = "openai_gptoss";
  c.with_tokens = random() % 2 == 0;
  if (random() % 2 == 0) c.prompt = kReasoningOff;
  int num_words = 0;
  for (unsigned i = random() % 24; i > 0; --i) {
    if (random() % 4 == 0) {
      const std::vector<std::string>& tags = transcript_tag_pieces();
      if (c.with_tokens && random() % 2 == 0) c.text += kToken;
      c.text += tags[random() % tags.size()];
    } else {
      const std::string& piece = pieces[random() % pieces.size()];
      c.text += piece == "word" ? fmt::format("!{}!", num_words++) : piece;
    }
  }
  return c;
}

// Texts that nobody wrote down: whatever they mean, it does not hang on where they are cut.
TEST(TranscriptParser, AnySplitOfRandomPiecesAddsUpToTheWhole) {
  const std::vector<std::string> pieces = {"[ARGS]",
                                           "<",
                                           "[",
                                           "{",
                                           "}",
                                           "]",
                                           "\"",
                                           "\\",
                                           ",",
                                           ":",
                                           ";",
                                           " ",
                                           "\n",
                                           "f",
                                           "é",
                                           "</t",
                                           "[TOOL",
                                           R"({"name": "f", "arguments": {)",
                                           R"({"name":"g","parameters":{}})",
                                           R"("arguments": )",
                                           "<function=f>",
                                           "<parameter=x>",
                                           "</parameter>",
                                           "</function>",
                                           "<arg_key>x</arg_key>",
                                           "<arg_value>",
                                           "</arg_value>",
                                           "f(x=",
                                           ")",
                                           "to=functions.f",
                                           "analysis",
                                           "assistant",
                                           "Here is my ",
                                           "thought process:",
                                           "<response>",
                                           "</response>",
                                           "1"};
  std::mt19937 random(2);
  for (int round = 0; round < 6000; ++round) {
    const TranscriptCase c = random_transcript(pieces, random);
    const TranscriptAnswer whole = parse_transcript(c, {});
    std::vector<size_t> some, bytes;
    for (size_t cut = 0; cut <= marked_text_of(c).text.size(); ++cut) {
      bytes.push_back(cut);
      if (random() % 4 == 0) some.push_back(cut);
    }
    ASSERT_EQ(parse_transcript(c, bytes), whole) << c.tool_call_parser << ": " << c.text;
    ASSERT_EQ(parse_transcript(c, some), whole) << c.tool_call_parser << ": " << c.text;
    if (c.tool_call_parser != "hermes" || c.with_tokens) continue;
    for (const auto& [name, arguments] : whole.calls) {
      EXPECT_EQ(arguments.find("tool_call>"), arguments.npos) << c.text;
    }
  }
}

// Each word is told once, in its place.
TEST(TranscriptParser, LosesNoWordOfRandomPieces) {
  const std::vector<std::string> pieces = {"word",
                                           "word",
                                           "word",
                                           " ",
                                           "{",
                                           "}",
                                           "]",
                                           "}}",
                                           ", ",
                                           ";",
                                           "\"",
                                           R"({"name": "f", "arguments": {)",
                                           R"({"name":"g","parameters":{}})",
                                           R"({"name":"g","arguments":{}})",
                                           "f{}",
                                           "<function=f>",
                                           "<parameter=x>",
                                           "</parameter>",
                                           "</function>",
                                           "f\n",
                                           "<arg_key>x</arg_key>",
                                           "<arg_value>",
                                           "</arg_value>",
                                           "f(x='",
                                           "')",
                                           "\1<tool_call>\n<function=f>\n<parameter=x>",
                                           "\1<tool_call>f\n<arg_key>x</arg_key><arg_value>",
                                           "\1<function_calls>f(x='",
                                           "\1<|tool_call|>[{\"name\":\"g\",\"arguments\":{}}",
                                           "\1[TOOL_CALLS]f{}",
                                           "\1</tool_call>",
                                           "\1</think>",
                                           "<response>",
                                           "</response>"};
  std::mt19937 random(4);
  int num_calls = 0, num_words = 0;
  for (int round = 0; round < 40'000; ++round) {
    const TranscriptCase c = random_transcript(pieces, random);
    if (c.tool_call_parser == "openai") continue;  // whose headers may hold anything
    const TranscriptAnswer answer = parse_transcript(c, {});
    std::vector<std::string> told = {answer.reasoning, answer.content};
    for (const auto& [name, arguments] : answer.calls) told.push_back(arguments);
    const auto count = [](std::string_view text, const std::string& word) {
      size_t found = 0;
      for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++found;
      return found;
    };
    std::vector<size_t> last(told.size());  // where the word before stands
    for (int i = 0; count(c.text, fmt::format("!{}!", i)) > 0; ++i) {
      const std::string word = fmt::format("!{}!", i);
      size_t found = 0;
      for (size_t k = 0; k < told.size(); ++k) {
        found += count(told[k], word);
        if (const size_t at = told[k].find(word); at != told[k].npos) {
          ASSERT_GE(at, last[k]) << c.text << answer;
          last[k] = at;
        }
      }
      ASSERT_EQ(found, 1u) << word << " of " << c.tool_call_parser << ": " << c.text << "\n"
                           << answer;
      ++num_words;
    }
    num_calls += static_cast<int>(answer.calls.size());
  }
  EXPECT_GT(num_calls, 1000);
  EXPECT_GT(num_words, 10'000);
}

}  // namespace
}  // namespace nanovllm::server
