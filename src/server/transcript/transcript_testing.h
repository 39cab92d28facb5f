// What the tests of transcripts share: a client that adds up pieces, and cases.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/transcript/transcript_parser.h"

namespace nanovllm::server {

using TranscriptCalls = std::vector<std::pair<std::string, std::string>>;  // names and arguments

struct TranscriptAnswer {
  std::string reasoning = {}, content = {};
  TranscriptCalls calls = {};
  bool operator==(const TranscriptAnswer&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const TranscriptAnswer& answer) {
    out << "reasoning: [" << answer.reasoning << "] content: [" << answer.content << "]";
    for (const auto& [name, arguments] : answer.calls) {
      out << " " << name << "(" << arguments << ")";
    }
    return out;
  }
};

// Adds up what a client does, and checks what it relies on.
class TranscriptClient {
 public:
  void add(const TranscriptDelta& delta) {
    answer.reasoning += delta.reasoning;
    answer.content += delta.content;
    for (size_t i = 0; i < delta.tool_calls.size(); ++i) {
      const ToolCallDelta& call = delta.tool_calls[i];
      const auto index = static_cast<size_t>(call.index);
      EXPECT_EQ(call.name.empty(), index < answer.calls.size()) << call.name;
      EXPECT_TRUE(i == 0 || call.index > delta.tool_calls[i - 1].index);
      ASSERT_LE(index, answer.calls.size());
      if (!call.name.empty()) answer.calls.emplace_back(call.name, "");
      EXPECT_EQ(index + 1, answer.calls.size()) << "an earlier call grows";
      answer.calls[index].second += call.arguments;
    }
  }
  TranscriptAnswer answer = {};
};

struct TranscriptCase {
  std::string reasoning_parser, tool_call_parser;
  std::string text;  // a tag behind kToken is a token
  TranscriptAnswer answer;
  std::string prompt = "<|im_start|>assistant\n";
  bool with_tools = true;
  bool with_tokens = false;  // the tags are such
  const ToolTypes* tools = nullptr;
};

inline const std::string kOneCall =
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
inline const std::string kReasoningOff = "<|im_start|>assistant\n<think>\n\n</think>\n\n";

inline const ToolTypes& no_schemas() {
  static const ToolTypes types(nlohmann::ordered_json::array());
  return types;
}

inline constexpr char kToken = '\x01';

inline TranscriptTags tags_of(const TranscriptCase& c) {
  TranscriptTags tags;
  if (!c.with_tokens) return tags;
  for (const char* tag : {"<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>",
                          "[TOOL_CALLS]", "[THINK]", "[/THINK]", "<|tool_call|>",
                          "<function_calls>", "</function_calls>", "<|start|>", "<|channel|>",
                          "<|message|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>"}) {
    tags.ids.emplace(tag, static_cast<int32_t>(100 + tags.ids.size()));
  }
  return tags;
}

// The text without kToken, and where such tags are.
struct MarkedText {
  std::string text = {};
  std::vector<TokenMark> marks = {};
};

inline MarkedText marked_text_of(const TranscriptCase& c) {
  MarkedText result;
  for (size_t at = 0; at < c.text.size(); ++at) {
    if (c.text[at] != kToken) {
      result.text += c.text[at];
      continue;
    }
    for (const auto& [tag, id] : tags_of(c).ids) {
      if (std::string_view(c.text).substr(at + 1).starts_with(tag)) {
        result.marks.push_back({result.text.size(), id});
      }
    }
  }
  return result;
}

inline TranscriptAnswer parse_transcript(const TranscriptCase& c, std::vector<size_t> cuts) {
  const ToolTypes* tools = c.tools != nullptr ? c.tools : &no_schemas();
  const auto parser = make_transcript_parser({c.reasoning_parser, c.tool_call_parser}, tags_of(c),
                                             c.prompt, c.with_tools ? tools : nullptr);
  const MarkedText given = marked_text_of(c);
  TranscriptClient client;
  cuts.push_back(given.text.size());
  size_t from = 0;
  for (const size_t cut : cuts) {
    std::vector<TokenMark> marks;
    for (const TokenMark& mark : given.marks) {
      if (mark.offset >= from && mark.offset < cut) {
        marks.push_back({mark.offset - from, mark.token_id});
      }
    }
    client.add(parser->append(std::string_view(given.text).substr(from, cut - from), marks));
    from = cut;
  }
  client.add(parser->finish());
  return client.answer;
}

// Whole, cut at each byte, at all of them, and at random.
inline void expect_same_for_all_cuts(const TranscriptCase& c, const TranscriptAnswer& answer,
                                     std::mt19937& random) {
  const size_t size = marked_text_of(c).text.size();
  std::vector<size_t> bytes;
  for (size_t cut = 0; cut <= size; ++cut) {
    ASSERT_EQ(parse_transcript(c, {cut}), answer) << cut << " of " << c.text;
    bytes.push_back(cut);
  }
  ASSERT_EQ(parse_transcript(c, bytes), answer) << "byte by byte: " << c.text;
  for (int round = 0; round < 20; ++round) {
    std::vector<size_t> cuts;
    const unsigned one_in = 2 + random() % 8;
    for (const size_t cut : bytes) {
      if (random() % one_in == 0) cuts.push_back(cut);
    }
    ASSERT_EQ(parse_transcript(c, cuts), answer) << c.text;
  }
}

}  // namespace nanovllm::server
