#include <gtest/gtest.h>

#include <random>

#include "server/transcript/transcript_testing.h"

namespace nanovllm::server {
namespace {

const std::string kTurn = "<|start|>user<|message|>Hi<|end|><|start|>assistant";

std::vector<TranscriptCase> harmony_cases() {
  std::vector<TranscriptCase> cases;
  const auto add = [&](const std::string& text, const TranscriptAnswer& answer) {
    cases.push_back({"openai_gptoss", "openai", text, answer, kTurn});
  };
  const std::string analysis = "<|channel|>analysis<|message|>",
                    final = "<|channel|>final<|message|>", next = "<|end|><|start|>assistant";
  add("", {});
  add(analysis + "hm" + next + final + "Hi<|return|>", {"hm", "Hi"});
  add(analysis + "hm" + next + final + "Hi", {"hm", "Hi"});
  add(final + "1 < 2 <|en <|end", {"", "1 < 2 <|en <|end"});
  add(analysis + "hm <|constrain|>json<|message|>", {"hm <|constrain|>json<|message|>", ""});
  add(analysis + "hm" + next + "<|channel|>final <|constrain|>json<|message|>{}<|return|>",
      {"hm", "{}"});
  // Messages of one kind.
  add(analysis + "a" + next + analysis + "b" + next + "<|channel|>commentary<|message|>c" + next +
          final + "d",
      {"a\nb", "c\nd"});
  add(analysis + next + analysis + "b", {"b", ""});
  // Calls, in all the orders that a header may have.
  for (const char* header : {"<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
                             "<|channel|>commentary to=functions.f<|constrain|>json<|message|>",
                             " to=functions.f<|channel|>commentary json<|message|>",
                             " to=functions.f<|channel|>commentary <|constrain|>json<|message|>",
                             "<|channel|>analysis to=functions.f code<|message|>",
                             "<|channel|>commentary to=f<|message|>"}) {
    for (const char* end : {"", "<|call|>", "<|end|>"}) {
      add(header + std::string("{\"x\": 1}") + end, {"", "", {{"f", "{\"x\": 1}"}}});
      add(header + std::string(end), {"", "", {{"f", "{}"}}});
    }
    add(header + std::string("{\"x\": "), {"", "", {{"f", "{\"x\": "}}});
    cases.push_back({"openai_gptoss",
                     "openai",
                     header + std::string("{\"x\": 1}<|call|>"),
                     {"", "{\"x\": 1}"},
                     kTurn,
                     false});
  }
  add("<|channel|>commentary to=functions.f<|message|>{}<|call|><|start|>assistant"
      "<|channel|>commentary to=functions.ns.g-1<|message|>{\"y\": 2}<|call|>",
      {"", "", {{"f", "{}"}, {"ns.g-1", "{\"y\": 2}"}}});
  // Tools of its own, which nobody offered it.
  add("<|channel|>analysis to=python code<|message|>1 + 1<|call|>", {"1 + 1", ""});
  add("<|channel|>commentary to=browser.search<|message|>{}<|call|>", {"{}", ""});
  add("<|channel|>commentary to=functions.python<|message|>{}", {"", "", {{"python", "{}"}}});
  add("<|channel|>commentary to=assistant<|message|>a", {"", "a"});
  add("<|channel|>commentary to=functions.<|message|>a", {"", "a"});
  // What models forget.
  add(analysis + "hm" + final + "Hi", {"hm", "Hi"});
  add(analysis + "hm<|start|>assistant" + final + "Hi", {"hm", "Hi"});
  add(analysis + "hm<|end|>" + final + "Hi", {"hm", "Hi"});
  add("<|message|>Hi", {"", "Hi"});
  add("<|channel|>other<|message|>Hi", {"", "Hi"});
  // Headers that break off.
  for (const char* text : {"<|channel|>", "<|channel|>analysis", "<|channel|>fin<|end|>",
                           " to=func", "<|end|><|start|>assistant", "<|end|>\n"}) {
    add(text, {});
  }
  // No channels at all.
  add("Hi", {"", "Hi"});
  add(" Hi, assistant<", {"", " Hi, assistant<"});
  const std::string story(1000, 'x');
  add(story, {"", story});
  add(story + "<|end|>b", {"", story + "\nb"});
  add("Hi" + final + "you", {"", "Hi\nyou"});
  add("<|end|><|start|>Hi<|end|>", {"", "Hi"});
  // An answer that goes on with what the prompt has begun.
  cases.push_back({"openai_gptoss",
                   "openai",
                   " you" + next + analysis + "hm",
                   {"hm", " you"},
                   kTurn + final + "Hi"});
  cases.push_back({"", "openai", "m<|end|>" + final + "Hi", {"m", "Hi"}, kTurn + analysis + "h"});
  return cases;
}

TEST(HarmonyParser, TakesChannelsApart) {
  std::mt19937 random(6);
  for (const TranscriptCase& c : harmony_cases()) {
    EXPECT_EQ(parse_transcript(c, {}), c.answer) << c.text;
    expect_same_for_all_cuts(c, c.answer, random);
  }
}

TEST(HarmonyParser, TakesTokensForTagsAndTheirCharactersForText) {
  std::mt19937 random(7);
  const std::string t(1, kToken);
  TranscriptCase c = {"openai_gptoss",
                      "openai",
                      t + "<|channel|>analysis" + t + "<|message|>a<|end|>b" + t + "<|end|>" + t +
                          "<|start|>assistant" + t + "<|channel|>final" + t +
                          "<|message|><|channel|>c" + t + "<|return|>",
                      {"a<|end|>b", "<|channel|>c"},
                      kTurn};
  c.with_tokens = true;
  expect_same_for_all_cuts(c, c.answer, random);
}

TEST(HarmonyParser, ShowsWordsAndArgumentsAsTheyCome) {
  const auto parser = make_transcript_parser({"openai_gptoss", "openai"}, {}, kTurn, &no_schemas());
  const auto append = [&](std::string_view text) { return parser->append(text, {}); };
  EXPECT_EQ(append("<|channel|>analysis<|message|>h"), (TranscriptDelta{"h", "", {}}));
  EXPECT_EQ(append("m<|end|><|start|>assistant<|chan"), (TranscriptDelta{"m", "", {}}));
  EXPECT_EQ(append("nel|>commentary to=functions.f"), TranscriptDelta{});
  EXPECT_EQ(append("<|message|>"), (TranscriptDelta{"", "", {{0, "f", ""}}}));
  EXPECT_EQ(append("{\"x\":"), (TranscriptDelta{"", "", {{0, "", "{\"x\":"}}}));
  EXPECT_EQ(append(" 1}<|call|>"), (TranscriptDelta{"", "", {{0, "", " 1}"}}}));
  EXPECT_EQ(parser->finish(), TranscriptDelta{});
}

}  // namespace
}  // namespace nanovllm::server
