#include "server/transcript/transcript_parser.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "nanovllm/tokenizer.h"
#include "server/transcript/call_scanners.h"
#include "server/transcript/harmony_parser.h"
#include "server/transcript/tag_parser.h"
#include "server/transcript/transcript_formats.h"

namespace nanovllm::server {
namespace {

constexpr ReasoningFormat kReasoningFormats[] = {
    {.name = "qwen3", .may_call = true},
    {.name = "deepseek_r1"},
    {.name = "glm45", .may_call = true},
    {.name = "glm47", .may_call = true},
    {.name = "granite",
     .begin_tags = {"Here is my thought process:", "Here's my thought process:", "<think>"},
     .end_tags = {"Here is my response:", "Here's my response:", "</think>"},
     .needs_begin_tag = true,
     .begin_answer = "<response>",
     .end_answer = "</response>"},
    {.name = "mistral",
     .begin_tags = {"[THINK]"},
     .end_tags = {"[/THINK]"},
     .needs_begin_tag = true},
    {.name = "olmo3"},
    {.name = kHarmonyReasoning},
};

// {"name": "f", "arguments": {...}}
constexpr CallLayout json_layout() {
  return {
      .between = ", ", .begin = "{\"name\": \"", .behind_name = "\", \"arguments\": ", .end = "}"};
}

constexpr ToolFormat hermes_like(std::string_view name) {
  return {.name = name,
          .open_tag = "<tool_call>",
          .close_tag = "</tool_call>",
          .keeps_tags = true,
          .layout = {.between = "\n",
                     .begin = "<tool_call>\n{\"name\": \"",
                     .behind_name = "\", \"arguments\": ",
                     .end = "}\n</tool_call>"}};
}

constexpr ToolFormat hermes_like(std::string_view name, const TaggedSyntax& tagged,
                                 const CallLayout& layout) {
  ToolFormat format = hermes_like(name);
  format.syntax = {.form = CallForm::kTagged, .tagged = &tagged};
  format.layout = layout;
  return format;
}

constexpr ToolFormat glm_like(std::string_view name, std::string_view between,
                              std::string_view end) {
  return hermes_like(name, kGlmCall,
                     {.between = between, .begin = "<tool_call>", .end = end, .style = "glm_xml"});
}

// [{...}, {...}] behind a tag.
constexpr CallLayout list_layout(bool may_have_ids) {
  CallLayout layout = json_layout();
  layout.may_have_id_member = may_have_ids;
  layout.is_list = true;
  layout.list_begin = "[";
  layout.list_end = "]";
  return layout;
}

// Models leave the tag out now and then.
constexpr ToolFormat qwen3_like(std::string_view name) {
  ToolFormat format = hermes_like(name, kQwen3CoderCall,
                                  {.between = "\n",
                                   .begin = "<tool_call>\n<function=",
                                   .behind_name = ">",
                                   .end = "\n</function>\n</tool_call>",
                                   .style = "qwen_xml"});
  format.other_open = kQwen3CoderCall.name_open;
  format.other_is_call = true;
  return format;
}

constexpr ToolFormat kToolFormats[] = {
    hermes_like("hermes"),
    {.name = "llama3_json",
     .open_tag = "<|python_tag|>",
     .begins_answer = true,
     .syntax = {.takes_parameters = true},
     .layout = {.between = "; ",
                .begin = "{\"name\": \"",
                .behind_name = "\", \"parameters\": ",
                .end = "}"}},
    {.name = "mistral",
     .open_tag = "[TOOL_CALLS]",
     .may_be_list = true,
     .syntax = {.lenient_arguments = true},
     .layout = list_layout(true)},
    qwen3_like("qwen3_coder"),
    qwen3_like("qwen3_xml"),
    glm_like("glm45", "\n", "\n</tool_call>"),
    glm_like("glm47", "", "</tool_call>"),
    {.name = "granite",
     .open_tag = "<|tool_call|>",
     .other_open = "<tool_call>",
     .keeps_tags = true,
     .may_be_list = true,
     .layout = list_layout(false)},
    {.name = "olmo3",
     .open_tag = "<function_calls>",
     .close_tag = "</function_calls>",
     .keeps_tags = true,
     .syntax = {.form = CallForm::kPythonic},
     .layout = {.between = "\n",
                .behind_name = "(",
                .end = ")",
                .style = "pythonic",
                .is_list = true,
                .list_end = "</function_calls>"}},
    {.name = kHarmonyTools},
};

// Null for the empty name.
template <typename Formats>
auto* find_transcript_format(const Formats& formats, const std::string& name, const char* flag) {
  const auto* found = std::ranges::find(formats, name, [](const auto& it) { return it.name; });
  if (found != std::end(formats)) return found;
  if (!name.empty()) {
    throw_error(ErrorCode::kInvalidArgument, "{}: \"{}\" is not known", flag, name);
  }
  return decltype(found){nullptr};
}

template <typename Formats>
std::vector<std::string> format_names(const Formats& formats) {
  std::vector<std::string> names;
  for (const auto& format : formats) names.emplace_back(format.name);
  return names;
}

// Where the last of such tags ends; 0 = there is none.
size_t end_of_last(std::span<const std::string_view> tags, std::string_view text) {
  size_t end = 0;
  for (const std::string_view tag : tags) {
    const size_t at = tag.empty() ? text.npos : text.rfind(tag);
    if (at != text.npos) end = std::max(end, at + tag.size());
  }
  return end;
}

// Reasoning is the rule: vLLM takes text for such from the start, tag or not, unless the turn that
// the prompt has begun has closed it.
TagParser::Begin begin_of(const ReasoningFormat& reasoning, std::string_view prompt) {
  const std::string_view turn = last_turn(prompt);
  const size_t opened = end_of_last(reasoning.begin_tags, turn);
  const size_t closed = end_of_last(reasoning.end_tags, turn);
  if (opened > closed) return TagParser::Begin::kThought;
  return closed > 0 ? TagParser::Begin::kContent : TagParser::Begin::kMayThink;
}

}  // namespace

const ReasoningFormat* reasoning_format(const TranscriptFormat& format) {
  return find_transcript_format(kReasoningFormats, format.reasoning_parser, "--reasoning-parser");
}

const ToolFormat* tool_format(const TranscriptFormat& format) {
  return find_transcript_format(kToolFormats, format.tool_call_parser, "--tool-call-parser");
}

bool has_channels(const TranscriptFormat& format) {
  const std::string &reasoning = format.reasoning_parser, &tools = format.tool_call_parser;
  if (reasoning != kHarmonyReasoning && tools != kHarmonyTools) return false;
  if ((reasoning != kHarmonyReasoning && !reasoning.empty()) ||
      (tools != kHarmonyTools && !tools.empty())) {
    throw_error(ErrorCode::kInvalidArgument,
                "--reasoning-parser {} and --tool-call-parser {} do not fit together: {} goes with "
                "{} alone",
                reasoning, tools, kHarmonyReasoning, kHarmonyTools);
  }
  return true;
}

namespace {

struct Template {
  std::string_view text;
  bool has(std::string_view part) const { return text.find(part) != text.npos; }

  // Whose generation prompt opens the reasoning, or leaves that to the model. Where only an option
  // does so, taking all text for reasoning would be wrong without it.
  std::string_view reasoning_parser(const TranscriptFormat& usual) const {
    if (has("<|channel|>") && has("<|message|>")) return kHarmonyReasoning;
    if (has("[THINK]")) return "mistral";
    const bool thinks = has("<think>") || has("</think>");
    if (thinks && has("<arg_key>")) return "glm45";
    if ((thinks || has("my thought process")) && has("<|start_of_role|>")) return "granite";
    if (thinks && has("<function_calls>")) return "olmo3";
    if (has("</think>")) {
      if (has("enable_thinking is false") || has("enable_thinking is not defined")) return "qwen3";
      const bool opens = has("<think>\\n'") || has("<think>\n'") || has("<think>\n\"");
      const bool is_option = has("if enable_thinking") || has("enable_thinking is");
      if (!is_option && (opens || has("<｜Assistant｜>"))) return "deepseek_r1";
    }
    // Where thoughts need no tag, models of one architecture that don't think would seem to.
    const ReasoningFormat* format = reasoning_format(usual);
    return format != nullptr && format->needs_begin_tag && !thinks ? format->name : "";
  }

  std::string_view tool_call_parser(const TranscriptFormat& usual) const {
    if (has("<|channel|>") && has("<|message|>")) return kHarmonyTools;
    if (has("[TOOL_CALLS]")) return "mistral";
    if (has("<function_calls>")) return "olmo3";
    if (has("<|tool_call|>") && has("<|start_of_role|>")) return "granite";
    if (has("<arg_key>")) return "glm45";
    if (has("<tool_call>") && has("<parameter=")) return "qwen3_coder";
    // Others put XML or lists between the tags.
    if (has("<function=") || has("<tool_calls>")) return "";
    if (has("<tool_call>")) return "hermes";
    if (has("<|eot_id|>") && has("\"parameters\":")) return "llama3_json";
    // It tells the model about tools and leaves open how it calls them.
    const bool leaves_open = has("tools") && !has("tool_call") && !has("functools");
    const bool has_channels = usual.tool_call_parser == kHarmonyTools;  // and shows none
    return leaves_open && !has_channels ? std::string_view(usual.tool_call_parser) : "";
  }
};

}  // namespace

std::vector<std::string> reasoning_parsers() { return format_names(kReasoningFormats); }

std::vector<std::string> tool_call_parsers() { return format_names(kToolFormats); }

TranscriptFormat transcript_format_of(std::string_view chat_template,
                                      const TranscriptFormat& usual) {
  const Template given = {chat_template};
  return {std::string(given.reasoning_parser(usual)), std::string(given.tool_call_parser(usual))};
}

std::string_view last_turn(std::string_view prompt) {
  size_t turn = 0;
  for (const std::string_view begin :
       {"<|im_start|>", "<|end_header_id|>", "<｜Assistant｜>", "<|assistant|>", "<|end_of_role|>",
        "<|start|>", "[/INST]", "[/TOOL_RESULTS]"}) {
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
  if (has_channels(format)) {
    std::ranges::for_each(kHarmonyTags, add);
    return tags;
  }
  if (const ReasoningFormat* reasoning = reasoning_format(format)) {
    for (const std::string_view tag : reasoning->begin_tags) {
      if (const auto id = add(tag)) tags.begin_of_thought = id;
    }
    for (const std::string_view tag : reasoning->end_tags) {
      if (const auto id = add(tag)) tags.end_of_thought = id;
    }
  }
  if (const ToolFormat* tools = tool_format(format)) {
    for (const std::string_view tag : {tools->open_tag, tools->other_open, tools->close_tag}) {
      add(tag);
    }
  }
  return tags;
}

ThoughtTags thought_tags(const TranscriptFormat& format, std::string_view chat_template) {
  if (has_channels(format)) return {"<|channel|>analysis<|message|>", "<|end|>"};
  const ReasoningFormat* reasoning = reasoning_format(format);
  if (reasoning == nullptr) return {};
  const Template given = {chat_template};
  size_t pair = 0;
  for (size_t i = reasoning->end_tags.size(); i-- > 0;) {
    const std::string_view tag = reasoning->end_tags[i];
    if (!tag.empty() && given.has(tag)) pair = i;
  }
  return {std::string(reasoning->begin_tags[pair]), std::string(reasoning->end_tags[pair])};
}

bool thinks_at_once(const TranscriptFormat& format, std::string_view prompt) {
  if (has_channels(format)) return false;
  const ReasoningFormat* reasoning = reasoning_format(format);
  if (reasoning == nullptr) return false;
  const TagParser::Begin begin = begin_of(*reasoning, prompt);
  return begin == TagParser::Begin::kThought ||
         (begin == TagParser::Begin::kMayThink && !reasoning->needs_begin_tag);
}

bool has_thought_enough(const TranscriptFormat& format, std::string_view prompt) {
  if (has_channels(format)) return false;
  const ReasoningFormat* reasoning = reasoning_format(format);
  return reasoning != nullptr && begin_of(*reasoning, prompt) == TagParser::Begin::kContent;
}

std::unique_ptr<TranscriptParser> make_transcript_parser(const TranscriptFormat& format,
                                                         const TranscriptTags& tags,
                                                         std::string_view prompt,
                                                         const ToolTypes* tools) {
  if (has_channels(format)) {
    return std::make_unique<HarmonyParser>(tags, prompt, tools != nullptr);
  }
  const ReasoningFormat* reasoning = reasoning_format(format);
  const ToolFormat* calls = tool_format(format);
  return std::make_unique<TagParser>(
      reasoning, tools != nullptr ? calls : nullptr, tags,
      reasoning != nullptr ? begin_of(*reasoning, prompt) : TagParser::Begin::kContent, tools,
      format.calls_in_thoughts);
}

}  // namespace nanovllm::server
