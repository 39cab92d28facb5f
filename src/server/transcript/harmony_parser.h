// Takes a transcript apart whose messages name their channels, as those of gpt-oss do:
// <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "server/transcript/tagged_text.h"
#include "server/transcript/transcript_parser.h"

namespace nanovllm::server {

// vLLM's names of the parsers: one for both parts.
inline constexpr std::string_view kHarmonyReasoning = "openai_gptoss", kHarmonyTools = "openai";

inline constexpr std::array<std::string_view, 7> kHarmonyTags = {
    "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>",
    "<|end|>",   "<|return|>",  "<|call|>"};

// The analysis channel is reasoning; a message to a function is a call whatever its channel, if the
// request has tools; all else is content. Messages of one kind are a line break apart.
class HarmonyParser final : public TranscriptParser {
 public:
  HarmonyParser(const TranscriptTags& tags, std::string_view prompt, bool with_tools);
  TranscriptDelta append(std::string_view text, std::span<const TokenMark> tags) override;
  TranscriptDelta finish() override;

 private:
  enum class Kind { kReasoning, kContent, kCall };

  bool advance();  // false: nothing more before more comes
  void begin_message();
  void begin_body(Kind kind);
  void show(std::string_view text);
  void end_message();
  bool is_header() const;
  void end_header();

  std::array<Tag, kHarmonyTags.size()> tags_;
  bool with_tools_;
  TaggedText text_ = {};
  bool in_header_ = true;
  bool has_role_ = false;    // the header's first word is it
  std::string header_ = {};  // with its tags
  Kind kind_ = Kind::kContent;
  bool is_empty_ = true;  // the message so far
  bool has_reasoning_ = false, has_content_ = false;
  int num_calls_ = 0;
  TranscriptDelta delta_ = {};
};

}  // namespace nanovllm::server
