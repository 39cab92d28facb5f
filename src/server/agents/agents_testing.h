// What the tests of the APIs that agents speak share: models with parsers of a family, and what an
// engine says, cut anywhere.
#pragma once

#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/testing.h"
#include "server/openai/protocol_testing.h"
#include "server/transcript/transcript_testing.h"

namespace nanovllm::server {

// A model of letters whose thoughts and calls are in brackets.
struct BracketModel : LetterModel {
  BracketModel() { served.format = {"brackets", "brackets"}; }
};

// A model of letters whose words are taken apart as those of the case's family.
struct TranscriptModel {
  explicit TranscriptModel(const TranscriptCase& c) {
    letters.served.format = {c.reasoning_parser, c.tool_call_parser};
    letters.served.tags = tags_of(c);
    letters.served.make_parser = [prompt = c.prompt](const TranscriptFormat& format,
                                                     const TranscriptTags& tags, std::string_view,
                                                     const ToolTypes* tools) {
      return make_transcript_parser(format, tags, prompt, tools);
    };
  }
  LetterModel letters;
};

// Between characters.
inline std::vector<size_t> random_cuts(std::string_view text, unsigned one_in,
                                       std::mt19937& random) {
  std::vector<size_t> cuts;
  for (size_t at = 1; at < text.size(); ++at) {
    const bool is_inside = (static_cast<unsigned char>(text[at]) >> 6) == 2;
    if (!is_inside && random() % one_in == 0) cuts.push_back(at);
  }
  cuts.push_back(text.size());
  return cuts;
}

// Of a template in tests/data/chat_templates.
inline std::string template_source(const std::string& name) {
  const std::string path = test::source_path("tests/data/chat_templates/" + name + ".jinja");
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A delta of one token for each piece, and the end.
inline std::vector<EngineEvent> events_of(const MarkedText& words, const std::vector<size_t>& cuts,
                                          const RequestEnd& last = end(0)) {
  std::vector<EngineEvent> events;
  size_t from = 0;
  for (const size_t cut : cuts) {
    RequestDelta piece = delta(0, words.text.substr(from, cut - from), {1});
    for (const TokenMark& mark : words.marks) {
      if (mark.offset >= from && mark.offset < cut) {
        piece.marks.push_back({mark.offset - from, mark.token_id});
      }
    }
    events.emplace_back(std::move(piece));
    from = cut;
  }
  events.emplace_back(last);
  return events;
}

inline std::vector<EngineEvent> events_of(const std::string& text,
                                          const RequestEnd& last = end(0)) {
  return events_of(MarkedText{.text = text}, {text.size()}, last);
}

// In one call each, or all at once; and the end of the answer.
inline std::string told(ApiCall& call, const std::vector<EngineEvent>& events,
                        bool one_by_one = false) {
  std::string out;
  if (one_by_one) {
    for (const EngineEvent& event : events) out += call.on_events(0, {&event, 1});
  } else {
    out = call.on_events(0, events);
  }
  EXPECT_TRUE(call.is_over());
  return out + call.finish();
}

// Of a text that some pieces make up: whatever it means, a parser of this family may be asked.
inline std::string random_words(std::mt19937& random) {
  static const std::vector<std::string> pieces = {"word",
                                                  " ",
                                                  "\n\n",
                                                  "\u00e9",
                                                  "{",
                                                  "}",
                                                  ", ",
                                                  ";",
                                                  R"({"name": "f", "arguments": {"x": "a"}})",
                                                  R"({"name":"g","parameters":{}})",
                                                  "f{}",
                                                  "<function=f>",
                                                  "<parameter=x>",
                                                  "</parameter>",
                                                  "</function>",
                                                  "f(x='",
                                                  "')",
                                                  "\1<think>",
                                                  "\1</think>",
                                                  "\1<tool_call>\n",
                                                  "\1</tool_call>",
                                                  "\1<function_calls>f(x='b')",
                                                  "\1</function_calls>",
                                                  "\1<|tool_call|>",
                                                  "\1[TOOL_CALLS]f{}",
                                                  "\1<|channel|>final\1<|message|>",
                                                  "\1<|end|>\1<|start|>assistant",
                                                  "\1<|channel|>commentary to=functions.f",
                                                  "\1<|message|>"};
  std::string words;
  for (unsigned i = random() % 16; i > 0; --i) words += pieces[random() % pieces.size()];
  return words;
}

}  // namespace nanovllm::server
