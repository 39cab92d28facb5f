#include "server/agents/responses_request.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "engine/sampling_table.h"
#include "io/json.h"
#include "server/agents/responses_input.h"

namespace nanovllm::server {
namespace {

constexpr int kMostTopLogprobs = 20;  // as OpenAI's
// As OpenAI's, in characters.
constexpr size_t kMostMetadataKey = 64, kMostMetadataValue = 512;

// What each response tells again and no prompt bounds, and how much of it: bytes as JSON.
constexpr std::string_view kToldAgain[] = {"reasoning",
                                           "text",
                                           "truncation",
                                           "user",
                                           "service_tier",
                                           "prompt_cache_key",
                                           "prompt_cache_retention",
                                           "prompt_cache_options",
                                           "safety_identifier"};
constexpr size_t kMostTold = 1024;

// With chat's meaning, beside the sampling parameters.
constexpr std::string_view kAsInChat[] = {"model", "chat_template", "chat_template_kwargs"};

// A function with one text, for models were taught no other tools.
Json function_of_custom_tool(const JsonPart& tool, Json name) {
  std::string description = tool.text("description").value_or("");
  if (const auto format = tool.object("format"); format && format->text("type") == "grammar") {
    description += fmt::format(
        "{}The input must match this grammar ({}):\n{}", description.empty() ? "" : "\n\n",
        format->text("syntax").value_or("lark"), format->given("definition"));
  }
  return {{"name", std::move(name)},
          {"description", std::move(description)},
          {"parameters",
           {{"type", "object"},
            {"properties", {{"input", {{"type", "string"}}}}},
            {"required", Json::array({"input"})}}}};
}

class ToolList {
 public:
  explicit ToolList(ResponsesRequest& request) : request_(request) {}

  void add(const JsonPart& list) { add(list, "", request_.shown_tools); }

  Json take() { return std::move(tools_); }

 private:
  void add(const JsonPart& list, const std::string& space, Json& shown) {
    for (size_t i = 0; i < list.size(); ++i) add_one(list.item(i), space, shown);
  }

  void add_one(const JsonPart& tool, const std::string& space, Json& shown) {
    const std::string type = tool.given("type");
    if (type == "namespace" && space.empty()) {
      const std::string name = tool.given("name");
      Json members = Json::array();
      add(tool.list("tools"), name, members);
      if (members.empty()) return;
      shown.push_back({{"type", type}, {"name", name}, {"tools", std::move(members)}});
    } else if (type == "function" || type == "custom") {
      add_function(tool, space, type == "custom");
      shown.push_back(shown_tool(tool));
    } else {
      note_left_out(tool, type, request_.left_out);
    }
  }

  void add_function(const JsonPart& tool, const std::string& space, bool is_custom) {
    const std::string name = tool.given("name");
    const std::string flat = flat_tool_name(space, name);
    if (!request_.tools.emplace(flat, ResponsesTool{is_custom, name, space}).second) {
      tool.refuse(" is a second tool that the model would know as \"{}\"; rename one.",
                  printable(flat));
    }
    Json function = {{"name", flat}};
    if (is_custom) {
      function = function_of_custom_tool(tool, flat);
    } else {
      if (const auto description = tool.text("description")) {
        function["description"] = *description;
      }
      if (const auto parameters = tool.object("parameters")) {
        check_parameters(*parameters);
        function["parameters"] = parameters->json();
      }
      const auto strict = tool.find("strict");
      if (strict && strict->json() == true) function["strict"] = true;
    }
    tools_.push_back({{"type", "function"}, {"function", std::move(function)}});
  }

  // Calls have members of an object.
  static void check_parameters(const JsonPart& parameters) {
    const auto type = parameters.find("type");
    if (type && type->json() != "object") {
      type->refuse(" must be \"object\", got {}.", shown(type->json()));
    }
  }

  static Json shown_tool(const JsonPart& tool) {
    Json result = Json::object();
    for (const char* name : {"type", "name", "description", "parameters"}) {
      if (const auto part = tool.find(name)) result[name] = part->json();
    }
    if (result["type"] == "custom") result.erase("parameters");  // which mean nothing there
    return result;
  }

  ResponsesRequest& request_;
  Json tools_ = Json::array();
};

void refuse_what_is_stored(const RequestFields& fields) {
  if (const auto id = fields.text("previous_response_id")) {
    throw ApiError(404,
                   fmt::format("Previous response with id '{}' not found: this server stores no "
                               "responses. Send the whole conversation as input.",
                               printable(*id)),
                   "previous_response_id", "previous_response_not_found");
  }
  if (fields.boolean("background")) {
    refuse("background",
           "background is not supported, as this server stores no responses; leave it out and wait "
           "for the answer, or stream it.");
  }
  if (fields.find("conversation") != nullptr) {
    refuse("conversation",
           "conversation is not supported, as this server stores none; send the whole conversation "
           "as input.");
  }
  if (fields.find("prompt") != nullptr) {
    refuse("prompt",
           "prompt is not supported, as this server stores no templates of prompts; send its text "
           "as instructions or input.");
  }
}

size_t num_characters(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

// Which has a bound of its own.
Json without_schema(Json value) {
  const auto format = value.is_object() ? value.find("format") : value.end();
  if (format != value.end() && format->is_object()) format->erase("schema");
  return value;
}

void check_told_again(const RequestFields& fields) {
  for (const std::string_view name : kToldAgain) {
    const Json* value = fields.find(name);
    const size_t size = value == nullptr ? 0 : without_schema(*value).dump().size();
    if (size > kMostTold) {
      refuse(name, "{} may have {} bytes, as each response tells it again, got {}; shorten it.",
             name, kMostTold, size);
    }
  }
  const Json* metadata = fields.find("metadata");
  if (metadata == nullptr) return;
  for (const auto& [key, value] : metadata->items()) {
    if (num_characters(key) > kMostMetadataKey || !value.is_string() ||
        num_characters(value.get_ref<const std::string&>()) > kMostMetadataValue) {
      refuse("metadata",
             "metadata may have texts of {} characters under keys of {}; mend or leave out \"{}\".",
             kMostMetadataValue, kMostMetadataKey, printable(key));
    }
  }
}

// A chat has the members of a schema's format one level deeper.
void read_format(const RequestFields& fields, ResponsesRequest& request) {
  const Json* text = fields.find("text");
  const Json* format = text == nullptr ? nullptr : find_member(*text, "format");
  if (format == nullptr || (*format)["type"] == "text") return;
  if (fields.find("structured_outputs") != nullptr) {
    refuse("text.format",
           "text.format and structured_outputs both say what the output must follow; leave one of "
           "them out.");
  }
  request.constraint = "text.format";
  Json& asked = request.chat["response_format"] = {{"type", (*format)["type"]}};
  if (asked["type"] != "json_schema") return;
  const Json* schema = find_member(*format, "schema");
  if (schema == nullptr) refuse("text.format.schema", "text.format.schema must be given.");
  asked["json_schema"] = {{"schema", *schema}};
}

using ResponsesTools = std::map<std::string, ResponsesTool, std::less<>>;

// {"type": "function", "name"} as chat has it, with the name that the model knows: the whole one,
// or that within a namespace where it is the only one.
Json named_function(const Json& choice, const ResponsesTools& tools) {
  const Json* type = find_member(choice, "type");
  const Json* name = find_member(choice, "name");
  if (type == nullptr || (*type != "function" && *type != "custom") || name == nullptr ||
      !name->is_string()) {
    refuse("tool_choice",
           "tool_choice must be \"none\", \"auto\", \"required\", a function or a custom tool with "
           "its name, or allowed_tools that are a list of these, got {}.",
           type != nullptr ? shown(*type) : shown(choice));
  }
  const auto& asked = name->get_ref<const std::string&>();
  std::vector<std::string> found;
  for (const auto& [flat, tool] : tools) {
    if (flat == asked) return {{"type", "function"}, {"function", {{"name", flat}}}};
    if (tool.name == asked) found.push_back(flat);
  }
  if (found.empty()) {
    refuse("tool_choice", "tool_choice names {}, which is none of the tools.", shown(*name));
  }
  if (found.size() > 1) {
    refuse("tool_choice",
           "tool_choice names {}, which more than one namespace has; use its whole name, {}.",
           shown(*name), printable(fmt::format("{}", fmt::join(found, " or "))));
  }
  return {{"type", "function"}, {"function", {{"name", found[0]}}}};
}

Json chat_choice(const Json& choice, const ResponsesTools& tools) {
  if (choice == "required") {
    if (tools.empty()) {
      refuse("tool_choice", "Tool choice 'required' must be specified with 'tools' parameter.");
    }
    return choice;
  }
  const Json* type = find_member(choice, "type");
  if (type == nullptr || *type != "allowed_tools") return named_function(choice, tools);
  const Json* list = find_member(choice, "tools");
  const Json* mode = find_member(choice, "mode");
  Json allowed = {{"mode", mode == nullptr ? Json("auto") : *mode}, {"tools", Json::array()}};
  if (list != nullptr && list->is_array()) {
    for (const Json& one : *list) {
      // Others are left out of the tools as well.
      const Json* its = find_member(one, "type");
      const bool is_left_out =
          its != nullptr && its->is_string() && *its != "function" && *its != "custom";
      if (!is_left_out) allowed["tools"].push_back(named_function(one, tools));
    }
  }
  return {{"type", "allowed_tools"}, {"allowed_tools", std::move(allowed)}};
}

Json messages_of(const RequestFields& fields, ResponsesRequest& request, ToolList& tools) {
  ResponsesDialogue dialogue(request.left_out);
  if (const auto instructions = fields.text("instructions")) dialogue.instruct(*instructions);
  const Json& input = *fields.find("input");
  if (input.is_string()) {
    dialogue.ask(input.get<std::string>());
  } else if (input.is_array()) {
    const JsonPart list(input, "input");
    for (size_t i = 0; i < list.size(); ++i) {
      const JsonPart item = list.item(i);
      if (item.text("type") == "additional_tools") {
        tools.add(item.list("tools"));
      } else {
        dialogue.add(item);
      }
    }
  } else {
    refuse("input", "input must be a text or a list of items, got {}.", shown(input));
  }
  if (!dialogue.has_turns()) refuse("input", "input has no message; send one at least.");
  return dialogue.take();
}

void copy_what_chat_has(const RequestFields& fields, Json& chat) {
  const auto copy = [&](std::string_view name) {
    if (const Json* value = fields.find(name)) chat[std::string(name)] = *value;
  };
  for (const std::string_view name : kAsInChat) copy(name);
  const Json& known = body_schemas()[kResponsesRequest]["properties"];
  for (const Parameter& parameter : sampling_table()) {
    if (known.contains(parameter.name)) copy(parameter.name);
  }
}

void read_effort(const RequestFields& fields, Json& chat) {
  const Json* reasoning = fields.find("reasoning");
  const Json effort = reasoning == nullptr ? Json() : reasoning->value("effort", Json());
  if (!effort.is_null()) chat["reasoning_effort"] = effort;
}

std::optional<int64_t> read_max_output_tokens(const RequestFields& fields) {
  const auto most = fields.integer("max_output_tokens");
  if (most && *most < 1) {
    refuse("max_output_tokens", "max_output_tokens must be at least 1, got {}.", *most);
  }
  return most;
}

std::optional<int> read_logprobs(const RequestFields& fields) {
  const Json* include = fields.find("include");
  const int64_t top = fields.integer("top_logprobs").value_or(0);
  if (top < 0 || top > kMostTopLogprobs) {
    refuse("top_logprobs", "top_logprobs must be from 0 to {}, got {}.", kMostTopLogprobs, top);
  }
  const bool is_wanted =
      include != nullptr &&
      std::ranges::find(*include, Json("message.output_text.logprobs")) != include->end();
  return is_wanted ? std::optional(static_cast<int>(top)) : std::nullopt;
}

}  // namespace

// What may be in items and tools is checked where they are read, and named more exactly.
const char kResponsesSchemas[] = R"({
  "ResponsesRequest": {"type": "object", "required": ["input"], "properties": {
    "model": "string?",
    "input": {"anyOf": [{"type": "string"},
                        {"type": "array", "minItems": 1, "items": {"type": "object"}}]},
    "instructions": "string?", "stream": "boolean?", "stream_options": "object?",
    "tools": {"type": ["array", "null"], "items": {
      "type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}}},
    "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required", null]}, {"type": "object"}]},
    "parallel_tool_calls": "boolean?", "max_tool_calls": "integer?",
    "reasoning": {"type": ["object", "null"], "properties": {
      "effort": {"enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max", null]},
      "summary": "string?"}},
    "max_output_tokens": {"type": ["integer", "null"], "minimum": 1},
    "include": {"type": ["array", "null"], "items": {"type": "string"}},
    "top_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
    "text": {"type": ["object", "null"], "properties": {
      "format": {"type": ["object", "null"], "required": ["type"], "properties": {
        "type": {"enum": ["text", "json_object", "json_schema"]}, "name": "string?",
        "description": "string?", "strict": "boolean?", "schema": "object?"}},
      "verbosity": "string?"}},
    "chat_template": "string?",
    "chat_template_kwargs": {"type": ["object", "null"], "maxProperties": 256},
    "store": "boolean?", "user": "string?", "safety_identifier": "string?",
    "metadata": {"type": ["object", "null"], "maxProperties": 16,
                 "propertyNames": {"maxLength": 64},
                 "additionalProperties": {"type": "string", "maxLength": 512}},
    "service_tier": "string?", "truncation": "string?", "prompt_cache_key": "string?",
    "prompt_cache_retention": "string?", "prompt_cache_options": "object?",
    "client_metadata": "object?", "previous_response_id": "string?", "background": "boolean?",
    "conversation": {"anyOf": ["string?", {"type": "object"}]}, "prompt": "object?"
  }},
  "Response": {"type": "object",
               "required": ["id", "object", "created_at", "status", "model", "output", "usage"]}
})";

ResponsesRequest translate_responses(const RequestFields& fields) {
  refuse_what_is_stored(fields);
  fields.refuse_other_constraints("text.format, or structured_outputs");
  check_told_again(fields);
  ResponsesRequest request;
  copy_what_chat_has(fields, request.chat);
  read_format(fields, request);
  read_effort(fields, request.chat);
  request.max_output_tokens = read_max_output_tokens(fields);
  request.num_top_logprobs = read_logprobs(fields);
  ToolList tools(request);
  if (const Json* list = fields.find("tools")) tools.add(JsonPart(*list, "tools"));
  request.chat["messages"] = messages_of(fields, request, tools);
  Json functions = tools.take();
  const Json* choice = fields.find("tool_choice");
  const bool may_call = choice == nullptr || *choice != "none";
  if (!may_call) request.shown_tools = Json::array();
  if (may_call && choice != nullptr && *choice != "auto") {
    request.chat["tool_choice"] = chat_choice(*choice, request.tools);
  }
  if (may_call && !functions.empty()) {
    request.chat["tools"] = std::move(functions);
    request.chat["parallel_tool_calls"] = fields.boolean("parallel_tool_calls", true);
  }
  return request;
}

}  // namespace nanovllm::server
