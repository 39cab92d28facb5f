#include "server/transcript_parser.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "nanovllm/tokenizer.h"
#include "server/tag_parser.h"

namespace nanovllm::server {
namespace {

constexpr ReasoningFormat kReasoningFormats[] = {
    {.name = "qwen3", .begin_tag = "<think>", .end_tag = "</think>", .may_call = true},
    {.name = "deepseek_r1", .begin_tag = "<think>", .end_tag = "</think>", .may_call = false}};

constexpr ToolFormat kToolFormats[] = {
    {.name = "hermes", .open_tag = "<tool_call>", .close_tag = "</tool_call>", .keeps_tags = true},
    {.name = "llama3_json",
     .open_tag = "<|python_tag|>",
     .begins_answer = true,
     .syntax = {.takes_parameters = true}},
    {.name = "mistral",
     .open_tag = "[TOOL_CALLS]",
     .is_mistral = true,
     .syntax = {.lenient_arguments = true}},
};

// Null for the empty name.
template <typename Formats>
auto* find_transcript_format(const Formats& formats, const std::string& name, const char* flag) {
  const auto* found = std::ranges::find(formats, name, [](const auto& it) { return it.name; });
  if (found != std::end(formats)) return found;
  if (!name.empty())
    throw_error(ErrorCode::kInvalidArgument, "{}: \"{}\" is not known", flag, name);
  return decltype(found){nullptr};
}

template <typename Formats>
std::vector<std::string> format_names(const Formats& formats) {
  std::vector<std::string> names;
  for (const auto& format : formats) names.emplace_back(format.name);
  return names;
}

// Reasoning is the rule: vLLM takes text for such from the start, tag or not, unless the turn that
// the prompt has begun has closed it.
bool is_thought_open(const ReasoningFormat& reasoning, std::string_view prompt) {
  const std::string_view turn = last_turn(prompt);
  const size_t closed = turn.rfind(reasoning.end_tag);
  const size_t opened = turn.rfind(reasoning.begin_tag);
  return closed == turn.npos || (opened != turn.npos && opened > closed);
}

const ReasoningFormat* reasoning_format(const TranscriptFormat& format) {
  return find_transcript_format(kReasoningFormats, format.reasoning_parser, "--reasoning-parser");
}

const ToolFormat* tool_format(const TranscriptFormat& format) {
  return find_transcript_format(kToolFormats, format.tool_call_parser, "--tool-call-parser");
}

struct Template {
  std::string_view text;
  bool has(std::string_view part) const { return text.find(part) != text.npos; }

  // Whose generation prompt opens the reasoning, or leaves that to the model. Where only an option
  // does so, taking all text for reasoning would be wrong without it.
  const char* reasoning_parser() const {
    if (!has("</think>")) return "";
    if (has("enable_thinking is false") || has("enable_thinking is not defined")) return "qwen3";
    const bool opens = has("<think>\\n'") || has("<think>\n'") || has("<think>\n\"");
    const bool is_option = has("if enable_thinking") || has("enable_thinking is");
    return !is_option && (opens || has("<｜Assistant｜>")) ? "deepseek_r1" : "";
  }

  const char* tool_call_parser() const {
    if (has("[TOOL_CALLS]")) return "mistral";
    // Others put XML or lists between the tags.
    if (has("<function=") || has("<arg_key>") || has("<tool_calls>")) return "";
    if (has("<tool_call>")) return "hermes";
    return has("<|eot_id|>") && has("\"parameters\":") ? "llama3_json" : "";
  }
};

}  // namespace

std::vector<std::string> reasoning_parsers() { return format_names(kReasoningFormats); }

std::vector<std::string> tool_call_parsers() { return format_names(kToolFormats); }

TranscriptFormat transcript_format_of(std::string_view chat_template) {
  const Template given = {chat_template};
  return {given.reasoning_parser(), given.tool_call_parser()};
}

std::string_view last_turn(std::string_view prompt) {
  size_t turn = 0;
  for (const std::string_view begin : {"<|im_start|>", "<|end_header_id|>", "<｜Assistant｜>"}) {
    if (const size_t at = prompt.rfind(begin); at != prompt.npos) turn = std::max(turn, at);
  }
  return prompt.substr(turn);
}

TranscriptTags transcript_tags(const TranscriptFormat& format, const Tokenizer& tokenizer) {
  TranscriptTags tags;
  const auto add = [&](std::string_view tag) {
    auto id = tokenizer.token_to_id(tag);
    // Its text has to be found where its mark says.
    if (id && !(tokenizer.is_added(*id) && tokenizer.decode({&*id, 1}, false) == tag)) id.reset();
    if (id) tags.ids.emplace(tag, *id);
    return id;
  };
  if (const ReasoningFormat* reasoning = reasoning_format(format)) {
    tags.begin_of_thought = add(reasoning->begin_tag);
    tags.end_of_thought = add(reasoning->end_tag);
  }
  if (const ToolFormat* tools = tool_format(format)) {
    add(tools->open_tag);
    add(tools->close_tag);
  }
  return tags;
}

std::unique_ptr<TranscriptParser> make_transcript_parser(const TranscriptFormat& format,
                                                         const TranscriptTags& tags,
                                                         std::string_view prompt, bool with_tools) {
  const ReasoningFormat* reasoning = reasoning_format(format);
  const ToolFormat* tools = tool_format(format);
  return std::make_unique<TagParser>(reasoning, with_tools ? tools : nullptr, tags,
                                     reasoning && is_thought_open(*reasoning, prompt));
}

}  // namespace nanovllm::server
