#include "server/chat_prompt.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "io/json.h"
#include "nanovllm/chat.h"
#include "server/harmony_parser.h"

namespace nanovllm::server {
namespace {

constexpr std::array kTextParts = {"text", "input_text", "output_text", "refusal", "thinking"};

std::string text_of_part(const Json& part, const std::string& where) {
  if (part.is_string()) return part.get<std::string>();
  const auto type = part.is_object() ? part.find("type") : part.end();
  if (!part.is_object() || type == part.end() || !type->is_string())
    refuse("messages", "{} must be a text or an object with a type.", where);
  const auto& kind = type->get_ref<const std::string&>();
  if (std::ranges::find(kTextParts, kind) == kTextParts.end()) {
    refuse("messages", "{} is of the type \"{}\", which is not supported; send text parts only.",
           where, printable(kind));
  }
  const auto text = part.find(kind == "refusal" || kind == "thinking" ? kind : "text");
  if (text == part.end() || !text->is_string()) refuse("messages", "{} has no text.", where);
  return text->get<std::string>();
}

std::string content_of(const Json& message, const std::string& where) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array())
    refuse("messages", "{}.content must be a text or a list of parts, got {}.", where,
           shown(*content));
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    if (i > 0) text += '\n';
    text += text_of_part((*content)[i], fmt::format("{}.content[{}]", where, i));
  }
  return text;
}

// Templates want an object. What a model once wrote and is none must not make its chat end here.
Json arguments_of(const Json& function, int max_depth) {
  const auto arguments = function.find("arguments");
  if (arguments == function.end()) return Json::object();
  Json parsed = *arguments;
  if (arguments->is_string()) {
    try {
      parsed = parse_json_body(arguments->get_ref<const std::string&>(), max_depth);
    } catch (const Error&) {
      return Json::object();
    }
  }
  return parsed.is_object() ? parsed : Json::object();
}

Json message_of(const Json& message, const std::string& where, int max_depth) {
  Json result = {{"role", message["role"]}, {"content", content_of(message, where)}};
  const auto copy = [&](const char* from, const char* to) {
    const auto found = message.find(from);
    if (found != message.end() && !found->is_null() && !result.contains(to)) result[to] = *found;
  };
  const bool is_answer = message["role"] == "assistant";
  if (is_answer && !message.value("tool_calls", Json()).empty()) {
    copy("tool_calls", "tool_calls");
    for (Json& call : result["tool_calls"]) {
      Json& function = call["function"];
      function["arguments"] = arguments_of(function, max_depth);
    }
  }
  if (is_answer) copy("reasoning", "reasoning");
  if (is_answer) copy("reasoning_content", "reasoning");
  if (message["role"] == "tool") copy("tool_call_id", "tool_call_id");
  copy("name", "name");
  return result;
}

// Tools as the template gets them; null = none. `has_tools`: whether calls of them are looked for.
Json read_tools(const RequestFields& fields, const ServedModel& model, bool& has_tools) {
  const Json* list = fields.find("tools");
  const Json* choice = fields.find("tool_choice");
  has_tools = list != nullptr && (choice == nullptr || *choice != "none");
  if (list == nullptr && choice != nullptr && *choice != "none")
    refuse("tool_choice", "When using `tool_choice`, `tools` must be set.");
  if (list == nullptr) return nullptr;
  if (has_tools && model.format.tool_call_parser.empty()) {
    refuse("tool_choice",
           "\"auto\" tool choice requires a parser of the model's calls; start the server with "
           "--tool-call-parser, or send \"tool_choice\": \"none\".");
  }
  Json tools = Json::array();
  for (const Json& tool : *list) {
    // In vLLM's order of keys, for templates write them out.
    const Json& given = tool["function"];
    Json function = {{"name", given["name"]},
                     {"description", given.value("description", Json())},
                     {"parameters", given.value("parameters", Json())}};
    if (given.contains("strict") && !given["strict"].is_null())
      function["strict"] = given["strict"];
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

// gpt-oss was taught three efforts, and its template would write any other as it stands.
void check_effort(const Json& kwargs, const ServedModel& model) {
  if (model.format.reasoning_parser != kHarmonyReasoning) return;
  const Json effort = kwargs.value("reasoning_effort", Json("medium"));
  if (effort == "low" || effort == "medium" || effort == "high") return;
  refuse("reasoning_effort",
         "reasoning_effort is {}, which this model does not know; use \"low\", \"medium\" or "
         "\"high\".",
         shown(effort));
}

Json read_kwargs(const RequestFields& fields, const ServedModel& model) {
  Json kwargs = model.default_chat_template_kwargs;
  const Json* given = fields.find("chat_template_kwargs");
  for (const char* name : {"chat_template", "tokenize"}) {
    if (given != nullptr && given->contains(name))
      refuse("chat_template_kwargs", "chat_template_kwargs must not have {}.", name);
  }
  const auto effort = fields.text("reasoning_effort");
  if (effort) kwargs["enable_thinking"] = *effort != "none";
  if (given != nullptr) kwargs.update(*given);
  if (effort) kwargs["reasoning_effort"] = *effort;
  if (const Json* documents = fields.find("documents")) kwargs["documents"] = *documents;
  check_effort(kwargs, model);
  return kwargs;
}

// As transformers does it: the final message is found by a tag behind it, and what follows is cut.
std::string continue_final(const ChatTemplate& chat_template, Json& messages, const Json& tools,
                           const Json& kwargs) {
  constexpr std::string_view kTag = "CONTINUE_FINAL_MESSAGE_TAG ";
  constexpr std::string_view kStripped = kTag.substr(0, kTag.size() - 1);
  auto& content = messages.back()["content"].get_ref<std::string&>();
  content += kTag;
  std::string text = chat_template.render(messages, tools, false, kwargs);
  const size_t at = text.rfind(kStripped);
  if (at == std::string::npos) {
    refuse("continue_final_message",
           "continue_final_message is set but the final message does not appear in the chat after "
           "applying the chat template.");
  }
  const bool keeps_spaces = text.compare(at, kTag.size(), kTag) == 0;
  text.resize(at);
  if (!keeps_spaces) text.resize(text.find_last_not_of(" \t\n\r\f\v") + 1);
  return text;
}

}  // namespace

ChatPrompt render_chat(const RequestFields& fields, const ServedModel& model) {
  ChatPrompt prompt;
  Json messages = Json::array();
  for (const Json& message : *fields.find("messages")) {
    messages.push_back(
        message_of(message, fmt::format("messages[{}]", messages.size()), model.max_json_depth));
  }
  bool has_tools = false;
  const Json tools = read_tools(fields, model, has_tools);
  if (has_tools) prompt.tools = std::make_unique<ToolTypes>(tools);
  const Json kwargs = read_kwargs(fields, model);
  const bool continues = fields.boolean("continue_final_message");
  const bool add_generation_prompt = fields.boolean("add_generation_prompt", true);
  if (continues && add_generation_prompt) {
    refuse("continue_final_message",
           "Cannot set both `continue_final_message` and `add_generation_prompt` to True; "
           "`add_generation_prompt` is True unless the request says otherwise.");
  }
  prompt.add_special_tokens = fields.boolean("add_special_tokens");
  prompt.role = add_generation_prompt ? "assistant" : messages.back()["role"].get<std::string>();
  if (messages.back()["role"] == prompt.role)
    prompt.last_content = messages.back()["content"].get<std::string>();
  const auto source = fields.text("chat_template");
  if (source && !model.trust_request_chat_template) {
    refuse("chat_template",
           "Chat template is passed with request, but --trust-request-chat-template is not set. "
           "Refused request with untrusted chat template.");
  }
  fields.check_model();
  try {
    const auto own =
        source ? ChatTemplate::from_source(*source, model.preparer.model_dir) : nullptr;
    const ChatTemplate* chat_template = own ? own.get() : model.preparer.chat_template;
    if (chat_template == nullptr) {
      refuse("messages", "{} has no chat template; start the server with --chat-template.",
             model.names.front());
    }
    prompt.text = continues ? continue_final(*chat_template, messages, tools, kwargs)
                            : chat_template->render(messages, tools, add_generation_prompt, kwargs);
  } catch (const Error& error) {
    throw ApiError(status_of(error.code()), error.what(), source ? "chat_template" : "messages");
  }
  return prompt;
}

}  // namespace nanovllm::server
