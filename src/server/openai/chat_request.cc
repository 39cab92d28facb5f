#include "server/openai/chat_request.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "engine/structured_outputs.h"
#include "io/json.h"
#include "nanovllm/chat.h"
#include "server/openai/prompt_tokens.h"
#include "server/transcript/harmony_parser.h"
#include "text/chat_messages.h"

namespace nanovllm::server {
namespace {

std::string name_of(const Json& function) {
  return printable(function["name"].get_ref<const std::string&>());
}

[[noreturn]] void refuse_function(const Json& function, std::string_view what) {
  refuse("tools", "The parameters of the function \"{}\" can't be enforced: {}", name_of(function),
         what);
}

// Calls have members of an object.
void check_types(const CallRules& calls) {
  for (const Json& tool : calls.tools) {
    const Json& function = tool["function"];
    const Json* parameters = find_member(function, "parameters");
    const Json* type = parameters == nullptr ? nullptr : find_member(*parameters, "type");
    if (type == nullptr || !calls.are_enforced(function)) continue;
    const bool may_be_object =
        *type == "object" || (type->is_array() && std::ranges::count(*type, Json("object")) > 0);
    if (!may_be_object) {
      refuse_function(function,
                      fmt::format("JSON schema: type must be \"object\", got {}.", shown(*type)));
    }
  }
}

// One whose schema can't be enforced whatever stands around it in a tag.
void refuse_function_alone(const CallRules& calls, const GrammarCompiler& grammars) {
  for (const Json& tool : calls.tools) {
    const Json& function = tool["function"];
    if (!calls.are_enforced(function)) continue;
    try {
      grammars.json_schema(enforced_schema(function).dump());
    } catch (const Error& error) {
      refuse_function(function, fmt::format("{}.", error.what()));
    }
  }
}

}  // namespace

ChatRequest::ChatRequest(const RequestFields& fields, const ServedModel& model,
                         SamplingParams params)
    : model_(model), params_(std::move(params)), prompt_(render_chat(fields, model)) {
  const TranscriptFormat& format = model.format;
  // Not where a prompt is read: what only counts its tokens has no calls to find.
  if (prompt_.tools && format.tool_call_parser.empty()) {
    refuse("tool_choice",
           "\"auto\" tool choice requires a parser of the model's calls; start the server with "
           "--tool-call-parser, or let tool_choice be none.");
  }
  is_parsed_ = model.make_parser && (!format.reasoning_parser.empty() || prompt_.tools);
  turn_ = last_turn(prompt_.text);
}

SamplingParams ChatRequest::params(const char* constraint) const {
  SamplingParams params = params_;
  if (is_parsed_) {
    for (const auto& [tag, token] : model_.tags.ids) params.marked_token_ids.push_back(token);
  }
  constrain(params, constraint);
  find_thoughts(params);
  return params;
}

bool ChatRequest::has_channels() const {
  return model_.format.reasoning_parser == kHarmonyReasoning ||
         model_.format.tool_call_parser == kHarmonyTools;
}

// Whether what an answer must follow says how calls are.
bool ChatRequest::are_calls_bound() const {
  return prompt_.calls && (params_.structured_outputs || prompt_.calls->must_call ||
                           prompt_.calls->has_strict() || prompt_.are_calls_fewer);
}

// Where calls come, or channels, what an answer must follow is part of a tag.
void ChatRequest::constrain(SamplingParams& params, const char* constraint) const {
  std::optional<StructuredOutputsParams>& asked = params.structured_outputs;
  const bool are_bound = are_calls_bound();
  if (!are_bound && !(asked && has_channels())) return;
  if (are_bound) check_types(*prompt_.calls);
  const ChatTemplate* chat_template = model_.preparer.chat_template;
  StructuredOutputsParams whole = asked.value_or(StructuredOutputsParams());
  whole.json = whole.regex = whole.grammar = std::nullopt;
  whole.choice = std::nullopt;
  whole.json_object = false;
  Json text;
  try {
    if (asked) text = text_format(*asked);
  } catch (const Error& error) {
    refuse(constraint, "{}.", error.what());
  }
  try {
    whole.structural_tag = answer_tag(
        model_.format, model_.tags, chat_template ? chat_template->source() : std::string(), turn_,
        are_bound ? &*prompt_.calls : nullptr, asked ? &text : nullptr);
  } catch (const Error& error) {
    refuse(are_bound ? "tool_choice" : constraint, "{}.", error.what());
  }
  if (model_.preparer.grammars != nullptr) compile_whole(whole, asked, constraint);
  asked = std::move(whole);
}

// What can't be enforced is told as it was given, not by its place in a tag that nobody has seen.
void ChatRequest::compile_whole(const StructuredOutputsParams& whole,
                                const std::optional<StructuredOutputsParams>& asked,
                                const char* constraint) const {
  const char* const field = prompt_.calls ? "tools" : constraint;
  try {
    whole.validate();
  } catch (const Error&) {
    refuse(field,
           "What the answer must follow has {} bytes with all that belongs to it, which is too "
           "long; shorten the schemas{}.",
           whole.structural_tag->size(), prompt_.calls ? ", or send fewer tools" : "");
  }
  const GrammarCompiler& grammars = *model_.preparer.grammars;
  try {
    grammar_ = compile(whole, grammars);
  } catch (const Error& error) {
    constexpr std::string_view kPlace = "structural tag at ";
    std::string_view what = error.what(), path;
    if (what.starts_with(kPlace)) {
      path = what.substr(kPlace.size(), what.find(": ") - kPlace.size());
      what.remove_prefix(what.find(": ") + 2);
    }
    const Json tag = Json::parse(*whole.structural_tag);
    const Json* function = prompt_.calls ? function_at(tag, path, *prompt_.calls) : nullptr;
    if (function != nullptr) refuse_function(*function, what);
    if (prompt_.calls) refuse_function_alone(*prompt_.calls, grammars);
    try {
      if (asked) compile(*asked, grammars);
    } catch (const Error& its) {
      throw ApiError(status_of(its.code()), its.what(), constraint);
    }
    refuse(field, "What the answer must follow can't be enforced: {}", what);
  }
}

// Where thoughts are, for who bounds them and who begins behind them.
void ChatRequest::find_thoughts(SamplingParams& params) const {
  const bool has_budget = params.thinking_token_budget.value_or(-1) >= 0;
  const bool is_bound = params.structured_outputs.has_value();
  const RequestPreparer& preparer = model_.preparer;
  if (is_bound && has_channels()) {
    if (has_budget) {
      refuse(
          "thinking_token_budget",
          "thinking_token_budget can't be enforced together with what the answer must follow, as "
          "this model's thoughts are messages of it; leave one of them out.");
    }
    params.thinking_tags = ThinkingTags();  // the tag has them
  } else if (preparer.thinking_end.empty()) {
    if (is_bound) params.thinking_tags = ThinkingTags();
  } else if (is_bound && has_thought_enough(model_.format, turn_)) {
    // A thought more would be taken for the answer.
    params.thinking_token_budget.reset();
    params.thinking_tags = ThinkingTags();
  } else if (has_budget || is_bound) {
    // What the turn before says of thoughts is not the model's.
    ThinkingTags tags = preparer.thinking_tags(encode_prompt(turn_, false, model_));
    if (tags.num_prompt_tokens < 0 && thinks_at_once(model_.format, turn_)) {
      tags.num_prompt_tokens = 0;
    }
    params.thinking_tags = std::move(tags);
  }
}

std::vector<int32_t> ChatRequest::encode() const {
  return encode_prompt(prompt_.text, prompt_.add_special_tokens, model_);
}

Turn ChatRequest::make_turn(const TurnOptions& options) const {
  std::unique_ptr<TranscriptParser> parser;
  TurnOptions its = options;
  // Channels have words between calls.
  its.calls_alone = prompt_.calls && prompt_.calls->must_call && !has_channels();
  if (is_parsed_) {
    TranscriptFormat format = model_.format;
    // A tag binds what comes behind the thought.
    format.calls_in_thoughts = !are_calls_bound();
    parser = model_.make_parser(format, model_.tags, turn_, prompt_.tools.get());
  }
  return {std::move(parser), model_.tags, its};
}

std::string ChatRequest::call_id(std::string_view prefix, const std::string& id, size_t completion,
                                 int call) const {
  const size_t hash = std::hash<std::string>()(fmt::format("{} {} {}", id, completion, call));
  const std::string whole = fmt::format("{}{:016x}", prefix, hash);
  return prompt_.short_call_ids ? text::short_call_id(whole) : whole;
}

void ChatRequest::drop_text() {
  prompt_.text = {};
  turn_ = {};
  grammar_.reset();
}

}  // namespace nanovllm::server
