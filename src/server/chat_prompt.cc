#include "server/chat_prompt.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "io/json.h"
#include "nanovllm/chat.h"

namespace nanovllm::server {
namespace {

constexpr size_t kMaxKwargs = 256;  // the renderer's time grows with the square
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

Json tool_calls_of(const Json& calls, const std::string& where, int max_depth) {
  if (!calls.is_array())
    refuse("messages", "{}.tool_calls must be a list, got {}.", where, shown(calls));
  Json list = Json::array();
  for (const Json& call : calls) {
    const auto function = call.is_object() ? call.find("function") : call.end();
    if (!call.is_object() || function == call.end() || !function->is_object() ||
        call.value("type", Json("function")) != "function")
      refuse("messages", "{}.tool_calls must hold calls of the type \"function\".", where);
    list.push_back(call);
    list.back()["function"]["arguments"] = arguments_of(*function, max_depth);
  }
  return list;
}

Json message_of(const Json& message, const std::string& where, int max_depth) {
  if (!message.is_object())
    refuse("messages", "{} must be an object, got {}.", where, shown(message));
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string())
    refuse("messages", "{}.role must be a text.", where);
  Json result = {{"role", *role}, {"content", content_of(message, where)}};
  const auto copy_text = [&](const char* from, const char* to) {
    const auto found = message.find(from);
    if (found == message.end() || found->is_null() || result.contains(to)) return;
    if (!found->is_string())
      refuse("messages", "{}.{} must be a text, got {}.", where, from, shown(*found));
    result[to] = *found;
  };
  if (*role == "assistant") {
    const auto calls = message.find("tool_calls");
    if (calls != message.end() && !calls->is_null()) {
      Json list = tool_calls_of(*calls, where, max_depth);
      if (!list.empty()) result["tool_calls"] = std::move(list);
    }
    copy_text("reasoning", "reasoning");
    copy_text("reasoning_content", "reasoning");
  }
  if (*role == "tool") copy_text("tool_call_id", "tool_call_id");
  copy_text("name", "name");
  return result;
}

// With vLLM's order of keys, for templates write them out.
Json tool_of(const Json& tool, size_t index) {
  const auto fail = [&](const char* what) {
    refuse("tools",
           "tools[{}] must be {{\"type\": \"function\", \"function\": {{\"name\": ...}}}}; {}.",
           index, what);
  };
  if (!tool.is_object() || tool.value("type", Json("function")) != "function")
    fail("its type is another");
  const auto function = tool.find("function");
  if (function == tool.end() || !function->is_object()) fail("it has no function");
  const auto name = function->find("name");
  if (name == function->end() || !name->is_string()) fail("its function has no name");
  Json result = {{"name", *name}, {"description", nullptr}, {"parameters", nullptr}};
  const auto copy = [&](const char* key, bool is_right, const char* complaint) {
    const auto found = function->find(key);
    if (found == function->end() || found->is_null()) return;
    if (!is_right) fail(complaint);
    result[key] = *found;
  };
  const auto is = [&](const char* key, bool (Json::*type)() const) {
    const auto found = function->find(key);
    return found != function->end() && ((*found).*type)();
  };
  copy("description", is("description", &Json::is_string), "its description is no text");
  copy("parameters", is("parameters", &Json::is_object), "its parameters are no object");
  copy("strict", is("strict", &Json::is_boolean), "its strict is neither true nor false");
  return {{"type", "function"}, {"function", std::move(result)}};
}

// Tools as the template gets them; null = none. `has_tools`: whether calls of them are looked for.
Json read_tools(RequestFields& fields, const ServedModel& model, bool& has_tools) {
  const Json* list = fields.array("tools");
  const Json* choice = fields.find("tool_choice");
  if (list != nullptr && list->empty()) {
    refuse("tools",
           "`tools` must not be an empty array. Either provide at least one tool or omit the field "
           "entirely.");
  }
  const bool is_text = choice != nullptr && choice->is_string();
  if (choice != nullptr && !is_text && !choice->is_object())
    refuse("tool_choice", "tool_choice must be a text or an object, got {}.", shown(*choice));
  const bool is_none = is_text && *choice == "none";
  if (choice != nullptr && !is_none && list == nullptr)
    refuse("tool_choice", "When using `tool_choice`, `tools` must be set.");
  if (choice != nullptr && !is_none && *choice != "auto") {
    refuse("tool_choice",
           "tool_choice other than \"none\" and \"auto\" is not supported yet; got {}.",
           shown(*choice));
  }
  if (list == nullptr) return nullptr;
  has_tools = !is_none;
  if (has_tools && model.format.tool_call_parser.empty()) {
    refuse("tool_choice",
           "\"auto\" tool choice requires a parser of the model's calls; start the server with "
           "--tool-call-parser, or send \"tool_choice\": \"none\".");
  }
  Json tools = Json::array();
  for (const Json& tool : *list) tools.push_back(tool_of(tool, tools.size()));
  return tools;
}

Json read_kwargs(RequestFields& fields, const ServedModel& model) {
  Json kwargs = model.default_chat_template_kwargs;
  bool says_thinking = false;
  if (const Json* given = fields.object("chat_template_kwargs")) {
    if (given->size() > kMaxKwargs)
      refuse("chat_template_kwargs", "chat_template_kwargs has more than {} members.", kMaxKwargs);
    for (const auto& [name, value] : given->items()) {
      if (name == "chat_template" || name == "tokenize")
        refuse("chat_template_kwargs", "chat_template_kwargs must not have {}.", name);
      says_thinking = says_thinking || name == "enable_thinking";
      kwargs[name] = value;
    }
  }
  if (const auto effort = fields.text("reasoning_effort")) {
    constexpr std::array kEfforts = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    if (std::ranges::find(kEfforts, *effort) == kEfforts.end())
      refuse("reasoning_effort", "reasoning_effort must be one of {}, got {}.",
             fmt::join(kEfforts, ", "), printable(*effort));
    kwargs["reasoning_effort"] = *effort;
    if (!says_thinking) kwargs["enable_thinking"] = *effort != "none";
  }
  if (const Json* documents = fields.array("documents")) {
    for (const Json& document : *documents) {
      if (!document.is_object())
        refuse("documents", "documents must hold objects, got {}.", shown(document));
    }
    kwargs["documents"] = *documents;
  }
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

ChatPrompt render_chat(RequestFields& fields, const ServedModel& model) {
  ChatPrompt prompt;
  const Json* list = fields.array("messages");
  if (list == nullptr || list->empty())
    refuse("messages", "messages must be a list of at least one message.");
  Json messages = Json::array();
  for (const Json& message : *list) {
    messages.push_back(
        message_of(message, fmt::format("messages[{}]", messages.size()), model.max_json_depth));
  }
  const Json tools = read_tools(fields, model, prompt.has_tools);
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

  const ChatTemplate* chat_template = model.preparer.chat_template;
  std::unique_ptr<ChatTemplate> own;
  const auto source = fields.text("chat_template");
  if (source && !model.trust_request_chat_template) {
    refuse("chat_template",
           "Chat template is passed with request, but --trust-request-chat-template is not set. "
           "Refused request with untrusted chat template.");
  }
  fields.check_model(model);
  try {
    if (source) {
      own = ChatTemplate::from_source(*source, model.preparer.model_dir);
      chat_template = own.get();
    }
    if (chat_template == nullptr) {
      refuse("messages", "{} has no chat template; start the server with --chat-template.",
             model.names.front());
    }
    prompt.text = continues ? continue_final(*chat_template, messages, tools, kwargs)
                            : chat_template->render(messages, tools, add_generation_prompt, kwargs);
  } catch (const Error& error) {
    throw ApiError(status_of(error.code()), error.what(), "messages");
  }
  return prompt;
}

}  // namespace nanovllm::server
