#include "server/agents/messages_request.h"

#include <algorithm>

#include "io/json.h"
#include "server/agents/messages_blocks.h"
#include "server/openai/prompt_tokens.h"
#include "server/transcript/harmony_parser.h"

namespace nanovllm::server {
namespace {

constexpr int64_t kLeastBudget = 1024;  // tokens, as Anthropic's
// Far more than a session has, so that a prompt that is too long is rendered and its tokens told.
constexpr size_t kMaxMessages = 100'000;
constexpr size_t kMaxTools = 4096;

// Answers 400 in a sentence that names the field itself, as errors of this API name none beside it.
template <typename... Args>
[[noreturn]] void refuse_body(fmt::format_string<Args...> format, Args&&... args) {
  throw ApiError(400, fmt::format(format, std::forward<Args>(args)...));
}

Json bounded_body(std::string_view body, const ServedModel& model, bool counts) {
  JsonListBound bounds[] = {{.name = "messages", .most = kMaxMessages},
                            {.name = "tools", .most = kMaxTools},
                            {.name = "stop_sequences", .most = kMaxStops}};
  Json json = parse_body(body, model, bounds);
  for (const JsonListBound& bound : bounds) {
    if (bound.size > bound.most && (!counts || bound.name != "stop_sequences")) {
      refuse_body("{} must not have more than {} entries, got {}.", bound.name, bound.most,
                  bound.size);
    }
  }
  return json;
}

// What says nothing of the prompt does not matter in a count, whatever it is.
void drop_sampling(Json& body) {
  for (const char* name :
       {"stream", "stop_sequences", "temperature", "top_p", "top_k", "cache_salt"}) {
    body.erase(name);
  }
  body["max_tokens"] = 1;
}

// The package that asks for a thread goes on without one when it is answered with this code.
void refuse_thread(const Json& body) {
  if (find_member(body, "thread") == nullptr) return;
  throw ApiError(400,
                 "thread is not supported: nothing is stored here; send the whole conversation in "
                 "messages, without thread.",
                 "thread", "thread_unsupported_request");
}

std::string type_of_choice(const RequestFields& fields) {
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr) return "auto";
  return (*choice)["type"].get<std::string>();
}

// As chat has it, of tools that are shown.
void read_choice(const RequestFields& fields, const std::string& type, MessagesRequest& request) {
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr) return;
  const Json* one = find_member(*choice, "disable_parallel_tool_use");
  request.options.parallel_tool_calls = one == nullptr || *one != true;
  if (type != "any" && type != "tool") return;
  if (!request.chat.contains("tools")) {
    refuse_body("tool_choice of the type \"{}\" needs tools, and there are none.", type);
  }
  request.chat["parallel_tool_calls"] = request.options.parallel_tool_calls;
  request.chat["tool_choice"] = "required";
  if (type == "any") return;
  const Json* name = find_member(*choice, "name");
  if (name == nullptr || !name->is_string()) refuse_body("tool_choice.name must be given.");
  const bool is_known = std::ranges::any_of(
      request.chat["tools"], [&](const Json& tool) { return tool["function"]["name"] == *name; });
  if (!is_known) refuse_body("tool_choice.name is {}, which is none of the tools.", shown(*name));
  request.chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
}

// output_format is the older name. A chat has the schema one level deeper.
void read_format(const RequestFields& fields, Json& chat) {
  const Json* config = fields.find("output_config");
  const Json* format = config == nullptr ? nullptr : find_member(*config, "format");
  const Json* older = fields.find("output_format");
  if (format != nullptr && older != nullptr) {
    refuse_body("output_format is the older name of output_config.format; leave it out.");
  }
  if (format == nullptr) format = older;
  if (format == nullptr) return;
  chat["response_format"] = {{"type", "json_schema"},
                             {"json_schema", {{"schema", (*format)["schema"]}}}};
}

// A budget of thoughts that are messages of the answer can't be enforced beside what it must
// follow, and clients send one with every request.
void drop_budget_of_channels(const ServedModel& model, Json& chat) {
  if (model.format.reasoning_parser != kHarmonyReasoning) return;
  const auto is_strict = [](const Json& tool) {
    const Json* strict = find_member(tool["function"], "strict");
    return strict != nullptr && *strict == true;
  };
  const bool is_bound = chat.contains("response_format") || chat.contains("tool_choice") ||
                        (chat.contains("tools") && std::ranges::any_of(chat["tools"], is_strict));
  if (is_bound) chat.erase("thinking_token_budget");
}

void refuse_servers(const RequestFields& fields) {
  const Json* servers = fields.find("mcp_servers");
  if (servers != nullptr && !servers->empty()) {
    refuse_body("mcp_servers are not supported: this server asks no other ones; leave them out.");
  }
}

Json template_kwargs(const RequestFields& fields, const ServedModel& model) {
  Json kwargs = Json::object();
  const Json* config = fields.find("output_config");
  const Json* effort = config == nullptr ? nullptr : find_member(*config, "effort");
  if (effort != nullptr) kwargs["reasoning_effort"] = effort_for(model, effort->get<std::string>());
  if (const Json* thinking = fields.find("thinking")) {
    const Json& type = (*thinking)["type"];
    if (type != "adaptive") kwargs["enable_thinking"] = type == "enabled";
  }
  if (const Json* given = fields.find("chat_template_kwargs")) kwargs.update(*given);
  return kwargs;
}

// Tokens of a thought; none = there is no budget.
std::optional<int64_t> read_budget(const RequestFields& fields, std::optional<int64_t> max_tokens) {
  const Json* thinking = fields.find("thinking");
  if (thinking == nullptr || (*thinking)["type"] != "enabled") return std::nullopt;
  const Json* given = find_member(*thinking, "budget_tokens");
  if (given == nullptr) refuse_body("thinking.budget_tokens must be given.");
  const auto budget = whole_number(*given);
  if (!budget || *budget < kLeastBudget) {
    refuse_body("thinking.budget_tokens must be an integer of at least {}, got {}.", kLeastBudget,
                shown(*given));
  }
  if (max_tokens && *budget >= *max_tokens) {
    refuse_body("thinking.budget_tokens must be less than max_tokens, got {} and {}.", *budget,
                *max_tokens);
  }
  return budget;
}

void read_sampling(const RequestFields& fields, const ServedModel& model,
                   MessagesRequest& request) {
  const auto max_tokens = fields.integer("max_tokens");
  if (max_tokens.value_or(1) < 1) {
    refuse_body("max_tokens must be at least 1, got {}.", *max_tokens);
  }
  request.options.max_tokens = max_tokens;
  const auto budget = read_budget(fields, max_tokens);
  if (budget && !model.preparer.thinking_end.empty()) {
    request.chat["thinking_token_budget"] =
        std::min<int64_t>(*budget, model.preparer.info.max_model_len);
  }
  for (const char* name : {"temperature", "top_p", "top_k", "cache_salt"}) {
    if (const Json* value = fields.find(name)) request.chat[name] = *value;
  }
  if (const Json* stops = fields.find("stop_sequences")) {
    for (const Json& stop : *stops) {
      if (stop.is_string() && stop.get_ref<const std::string&>().empty()) {
        refuse_body("stop_sequences must not hold an empty text.");
      }
    }
    request.chat["stop"] = *stops;
  }
}

}  // namespace

ApiError prompt_too_long(size_t num_tokens, size_t most) {
  return ApiError(400, fmt::format("prompt is too long: {} tokens > {} maximum", num_tokens, most),
                  {}, kContextExceeded);
}

MessagesRequest read_messages(std::string_view body, const ServedModel& model, bool counts) {
  Json json = bounded_body(body, model, counts);
  refuse_thread(json);
  if (counts) drop_sampling(json);
  const RequestFields fields = RequestFields::of(std::move(json), "MessagesRequest", model);
  const std::string name = *fields.text("model");
  check_model_name(name, model);
  refuse_servers(fields);
  MessagesRequest request = {
      .stream = fields.boolean("stream"),
      .options = {.call_ids = "toolu_", .constraint = "output_config.format"},
      .ignored_fields = fields.unknown()};
  MessageTools tools;
  if (const Json* list = fields.find("tools")) tools.add_given({*list, "tools"});
  MessageReader reader(tools, !counts);
  if (const Json* system = fields.find("system")) reader.read_system({*system, "system"});
  const JsonPart messages(*fields.find("messages"), "messages");
  for (size_t i = 0; i < messages.size(); ++i) reader.read(messages.item(i));
  const bool goes_on = reader.ends_with_answer();
  request.chat = {{"model", name}, {"messages", reader.take()}};
  if (request.chat["messages"].empty()) refuse_body("messages has nothing to answer.");
  if (goes_on) {
    request.chat["add_generation_prompt"] = false;
    request.chat["continue_final_message"] = true;
  }
  const std::string choice = type_of_choice(fields);
  Json visible = choice == "none" ? Json::array() : tools.as_chat_has_them();
  if (!visible.empty()) request.chat["tools"] = std::move(visible);
  if (!counts) read_choice(fields, choice, request);
  request.chat["chat_template_kwargs"] = template_kwargs(fields, model);
  if (!counts) {
    fields.refuse_other_constraints("output_config.format");
    read_sampling(fields, model, request);
    read_format(fields, request.chat);
    drop_budget_of_channels(model, request.chat);
  }
  return request;
}

}  // namespace nanovllm::server
