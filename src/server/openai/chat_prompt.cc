#include "server/openai/chat_prompt.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/parameter_error.h"
#include "io/json.h"
#include "nanovllm/chat.h"
#include "server/transcript/harmony_parser.h"
#include "text/chat_messages.h"

namespace nanovllm::server {
namespace {

// What vLLM hands on; ChatTemplate makes of it what the template reads.
Json message_of(const Json& message) {
  Json result = {{"role", message["role"]}, {"content", message.value("content", Json())}};
  const auto copy = [&](const char* name) {
    const auto found = message.find(name);
    if (found != message.end() && !found->is_null()) result[name] = *found;
  };
  if (message["role"] == "assistant") {
    for (const char* name : {"tool_calls", "reasoning", "reasoning_content", "thinking"}) {
      copy(name);
    }
  }
  if (message["role"] == "tool") copy("tool_call_id");
  if (message["role"] == "developer") copy("tools");
  copy("name");
  return result;
}

[[noreturn]] void refuse_choice(const Json& choice) {
  refuse("tool_choice",
         "tool_choice must be \"none\", \"auto\", \"required\", {{\"type\": \"function\", "
         "\"function\": {{\"name\": ...}}}} or {{\"type\": \"allowed_tools\", "
         "\"allowed_tools\": {{\"mode\", \"tools\"}}}}, got {}.",
         shown(choice));
}

// The name in {"type": "function", "function": {"name"}}.
std::string function_named(const Json& choice, const Json& tools) {
  const Json* type = find_member(choice, "type");
  const Json* function = find_member(choice, "function");
  const Json* name = function == nullptr ? nullptr : find_member(*function, "name");
  if (type == nullptr || *type != "function" || name == nullptr || !name->is_string()) {
    refuse_choice(choice);
  }
  const bool is_known = std::ranges::any_of(
      tools, [&](const Json& tool) { return tool["function"]["name"] == *name; });
  if (!is_known) {
    refuse("tool_choice",
           "The tool {} specified in `tool_choice` does not match any of the specified `tools`.",
           shown(*name));
  }
  return name->get<std::string>();
}

// Of allowed_tools, the names and whether one of them must be called.
std::vector<std::string> allowed_names(const Json& choice, const Json& tools, bool& must_call) {
  const Json* allowed = find_member(choice, "allowed_tools");
  const Json* list = allowed == nullptr ? nullptr : find_member(*allowed, "tools");
  const Json* given = allowed == nullptr ? nullptr : find_member(*allowed, "mode");
  const Json mode = given == nullptr ? Json("auto") : *given;
  if (list == nullptr || !list->is_array() || list->empty() ||
      (mode != "auto" && mode != "required")) {
    refuse("tool_choice",
           "tool_choice.allowed_tools must have a list of tools and the mode \"auto\" or "
           "\"required\".");
  }
  must_call = mode == "required";
  std::vector<std::string> names;
  for (const Json& one : *list) names.push_back(function_named(one, tools));
  return names;
}

// Which of the tools may be called, and whether one must.
void read_choice(const RequestFields& fields, const Json& tools, ChatPrompt& prompt) {
  CallRules rules = {.tools = tools, .parallel = fields.boolean("parallel_tool_calls", true)};
  const Json* const choice = fields.find("tool_choice");
  if (choice != nullptr && choice->is_object()) {
    std::vector<std::string> names;
    if (choice->value("type", Json()) == "allowed_tools") {
      names = allowed_names(*choice, tools, rules.must_call);
    } else {
      names.push_back(function_named(*choice, tools));
      rules.must_call = prompt.is_call_named = true;
      rules.parallel = false;
    }
    rules.tools = Json::array();
    for (const Json& tool : tools) {
      if (std::ranges::find(names, tool["function"]["name"].get<std::string>()) != names.end()) {
        rules.tools.push_back(tool);
      }
    }
  } else if (choice != nullptr && *choice != "auto") {
    if (*choice != "required") refuse_choice(*choice);
    rules.must_call = true;
  }
  prompt.are_calls_fewer = rules.tools.size() < tools.size();
  prompt.calls = std::move(rules);
}

// Tools as the template gets them; null = none. `has_tools`: whether calls of them are looked for.
Json read_tools(const RequestFields& fields, bool& has_tools) {
  const Json* list = fields.find("tools");
  const Json* choice = fields.find("tool_choice");
  has_tools = list != nullptr && (choice == nullptr || *choice != "none");
  if (list == nullptr && choice != nullptr && *choice != "none") {
    refuse("tool_choice", "When using `tool_choice`, `tools` must be set.");
  }
  if (list == nullptr) return nullptr;
  Json tools = Json::array();
  for (const Json& tool : *list) {
    // In vLLM's order of keys, for templates write them out.
    const Json& given = tool["function"];
    const Json& name = given["name"];
    if (name.is_string() && name.get_ref<const std::string&>().empty()) {
      refuse("tools", "tools[{}].function.name must not be empty.", tools.size());
    }
    Json function = {{"name", name},
                     {"description", given.value("description", Json())},
                     {"parameters", given.value("parameters", Json())}};
    if (given.contains("strict") && !given["strict"].is_null()) {
      function["strict"] = given["strict"];
    }
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
    if (given != nullptr && given->contains(name)) {
      refuse("chat_template_kwargs", "chat_template_kwargs must not have {}.", name);
    }
  }
  const auto effort = fields.text("reasoning_effort");
  if (effort) kwargs["enable_thinking"] = *effort != "none";
  if (given != nullptr) kwargs.update(*given);
  if (effort) kwargs["reasoning_effort"] = *effort;
  if (const Json* documents = fields.find("documents")) kwargs["documents"] = *documents;
  check_effort(kwargs, model);
  return kwargs;
}

}  // namespace

ChatPrompt render_chat(const RequestFields& fields, const ServedModel& model) {
  ChatPrompt prompt;
  Json messages = Json::array();
  for (const Json& message : *fields.find("messages")) messages.push_back(message_of(message));
  bool has_tools = false;
  const Json tools = read_tools(fields, has_tools);
  if (has_tools) {
    prompt.tools = std::make_unique<ToolTypes>(tools);
    read_choice(fields, tools, prompt);
  }
  const Json kwargs = read_kwargs(fields, model);
  const ChatTextOptions options = {
      .add_generation_prompt = fields.boolean("add_generation_prompt", true),
      .continue_final_message = fields.boolean("continue_final_message"),
      .add_special_tokens = fields.boolean("add_special_tokens")};
  prompt.role =
      options.add_generation_prompt ? "assistant" : messages.back()["role"].get<std::string>();
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
    if (messages.back()["role"] == prompt.role) {
      prompt.last_content = text::text_of_content(
          messages.back()["content"], fmt::format("messages[{}].content", messages.size() - 1));
    }
    prompt.short_call_ids = chat_template->wants_short_call_ids();
    ChatText chat = chat_text(*chat_template, messages, tools, kwargs, options);
    prompt.text = std::move(chat.text);
    prompt.add_special_tokens = chat.add_special_tokens;
  } catch (const ParameterError& error) {
    throw ApiError(status_of(error.code()), error.what(), error.parameter());
  } catch (const Error& error) {
    throw ApiError(status_of(error.code()), error.what(), source ? "chat_template" : "messages");
  }
  return prompt;
}

}  // namespace nanovllm::server
