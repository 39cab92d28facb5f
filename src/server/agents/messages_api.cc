// /v1/messages and /v1/messages/count_tokens
#include "server/agents/messages_api.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/agents/messages_request.h"
#include "server/openai/answer.h"
#include "text/chat_messages.h"

namespace nanovllm::server {
namespace {

// Of thoughts: clients send it back with them and want one. All are accepted.
constexpr const char* kSignature = "nanovllm";

const char* error_type(int status) {
  constexpr std::pair<int, const char*> kTypes[] = {
      {401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"},
      {413, "request_too_large"},    {429, "rate_limit_error"}, {503, "overloaded_error"},
      {529, "overloaded_error"}};
  for (const auto& [known, type] : kTypes) {
    if (status == known) return type;
  }
  return status >= 500 ? "api_error" : "invalid_request_error";
}

class Messages final : public AgentCall {
 public:
  Messages(MessagesRequest&& request, const ServedModel& served, const std::string& id)
      : AgentCall(std::move(request.chat), served, id, request.options) {
    stream = request.stream;
    ignored_fields = std::move(request.ignored_fields);
  }

 private:
  static std::string event(const char* type, const std::string& members) {
    return event_of(fmt::format(R"({{"type":"{}"{}}})", type, members), type);
  }

  std::string begin() override {
    return event("message_start", fmt::format(R"(,"message":{{{},"content":[],"stop_reason":null,)"
                                              R"("stop_sequence":null,"usage":{}}})",
                                              head(), usage_json()));
  }

  std::string open(const AnswerBlock& block) override {
    return event("content_block_start", fmt::format(R"(,"index":{},"content_block":{})",
                                                    block.index, block_json(block, false)));
  }

  std::string grow(const AnswerBlock& block, std::string_view piece) override {
    switch (block.kind) {
      case AnswerBlock::Kind::kThought:
        return delta(block, "thinking_delta", "thinking", piece);
      case AnswerBlock::Kind::kText:
        return delta(block, "text_delta", "text", piece);
      case AnswerBlock::Kind::kCall:
        return delta(block, "input_json_delta", "partial_json", piece);
    }
    return {};
  }

  std::string close(const AnswerBlock& block) override {
    std::string out;
    if (block.kind == AnswerBlock::Kind::kThought) {
      out = delta(block, "signature_delta", "signature", kSignature);
    }
    return out + event("content_block_stop", fmt::format(R"(,"index":{})", block.index));
  }

  std::string end() override {
    std::string out;
    if (blocks().empty()) {  // clients want one
      const AnswerBlock nothing;
      out = open(nothing) + close(nothing);
    }
    out += event("message_delta",
                 fmt::format(R"(,"delta":{{{}}},"usage":{})", end_members(), usage_json()));
    return out + event("message_stop", "");
  }

  std::string fail(const ApiError& error) override {
    return event_of(messages_error_body(error.status(), {.message = error.what()}), "error");
  }

  std::string whole() override {
    std::vector<std::string> content;
    for (const AnswerBlock& block : blocks()) content.push_back(block_json(block, true));
    if (content.empty()) content.push_back(block_json({}, true));
    return fmt::format(R"({{{},"content":[{}],{},"usage":{}}})", head(), fmt::join(content, ","),
                       end_members(), usage_json());
  }

  static std::string delta(const AnswerBlock& block, const char* type, const char* name,
                           std::string_view piece) {
    return event("content_block_delta",
                 fmt::format(R"(,"index":{},"delta":{{"type":"{}","{}":{}}})", block.index, type,
                             name, json_text(piece)));
  }

  // With its words, or as one that is opened.
  static std::string block_json(const AnswerBlock& block, bool is_whole) {
    const std::string words = json_text(is_whole ? block.text : "");
    switch (block.kind) {
      case AnswerBlock::Kind::kThought:
        return fmt::format(R"({{"type":"thinking","thinking":{},"signature":"{}"}})", words,
                           is_whole ? kSignature : "");
      case AnswerBlock::Kind::kText:
        return fmt::format(R"({{"type":"text","text":{}}})", words);
      case AnswerBlock::Kind::kCall: {
        const Json input = is_whole ? text::arguments_of(block.text) : Json::object();
        return fmt::format(R"({{"type":"tool_use","id":{},"name":{},"input":{}}})",
                           json_text(block.call_id), json_text(block.name),
                           input.dump(-1, ' ', false, Json::error_handler_t::replace));
      }
    }
    return {};
  }

  std::string head() const {
    return fmt::format(R"("id":{},"type":"message","role":"assistant","model":{})",
                       json_text("msg_" + id()), json_text(model().names.front()));
  }

  std::string end_members() const {
    const auto* stop = std::get_if<std::string>(&stop_reason());
    const char* reason = has_called() ? "tool_use" : "end_turn";
    if (finish_reason() == FinishReason::kLength) reason = "max_tokens";
    if (stop != nullptr) reason = "stop_sequence";
    return fmt::format(R"("stop_reason":"{}","stop_sequence":{})", reason,
                       stop != nullptr ? json_text(*stop) : "null");
  }

  // The prompt is the sum of the first three.
  std::string usage_json() const {
    const AgentUsage numbers = usage();
    return fmt::format(
        R"({{"input_tokens":{},"cache_creation_input_tokens":0,"cache_read_input_tokens":{},)"
        R"("output_tokens":{}}})",
        numbers.num_prompt_tokens - numbers.num_cached_tokens, numbers.num_cached_tokens,
        numbers.num_tokens);
  }
};

size_t num_rendered(const Json& chat, const ServedModel& model) {
  const size_t count = agent_prompt(agent_request(chat, model), model).size();
  const size_t most = most_counted_tokens(model);
  if (count > most) throw prompt_too_long(count, most);
  return count;
}

// Of a piece that a template takes in a dialogue alone, such as an answer or a tool's result:
// behind an empty message of the user, whose tokens are not counted.
size_t num_tokens_behind_user(const Json& chat, const ServedModel& model) {
  const Json& messages = chat["messages"];
  const auto is_system = [](const Json& message) { return message["role"] == "system"; };
  const auto rest = std::find_if_not(messages.begin(), messages.end(), is_system);
  Json all(messages.begin(), rest);
  Json before = all;
  for (Json& message : before) message["content"] = "";
  const Json empty = {{"role", "user"}, {"content", ""}};
  all.push_back(empty);
  before.push_back(empty);
  if (rest != messages.end() && (*rest)["role"] == "tool") {
    const Json call = {{"id", (*rest)["tool_call_id"]},
                       {"type", "function"},
                       {"function", {{"name", "f"}, {"arguments", Json::object()}}}};
    const Json calling = {
        {"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}};
    all.push_back(calling);
    before.push_back(calling);
  }
  all.insert(all.end(), rest, messages.end());
  Json whole = chat;
  whole["messages"] = std::move(all);
  const Json begin = {{"model", chat["model"]},
                      {"messages", std::move(before)},
                      {"add_generation_prompt", false},
                      {"chat_template_kwargs", chat["chat_template_kwargs"]}};
  const size_t count = num_rendered(whole, model);
  return count - std::min(count, num_rendered(begin, model));
}

size_t num_tokens_of(const Json& chat, const ServedModel& model) {
  try {
    return num_rendered(chat, model);
  } catch (const ApiError& refusal) {
    if (refusal.param() != "messages") throw;
    try {
      return num_tokens_behind_user(chat, model);
    } catch (const ApiError&) {
      throw ApiError(refusal);  // not what was asked
    }
  }
}

}  // namespace

std::unique_ptr<ApiCall> parse_messages(std::string_view body, const ServedModel& model,
                                        const std::string& id) {
  try {
    return std::make_unique<Messages>(read_messages(body, model, false), model, id);
  } catch (const PromptTooLong& error) {
    throw prompt_too_long(error.num_tokens(), error.most());
  }
}

std::string count_tokens_body(std::string_view body, const ServedModel& model) {
  const MessagesRequest request = read_messages(body, model, true);
  return fmt::format(R"({{"input_tokens":{}}})", num_tokens_of(request.chat, model));
}

std::string messages_error_body(int status, const ErrorWords& error) {
  Json words = {{"type", error_type(status)}, {"message", error.message}};
  if (!error.code.empty() && !error.param.empty()) {
    words["details"] = {{"error_code", error.code}, {"unsupported", Json::array({error.param})}};
  }
  return Json({{"type", "error"}, {"error", std::move(words)}})
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace nanovllm::server
