#include "server/agents/responses_api.h"

#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "io/json.h"
#include "server/agents/agent_call.h"
#include "server/agents/block_logprobs.h"
#include "server/agents/custom_input.h"
#include "server/agents/responses_request.h"
#include "server/openai/answer.h"

namespace nanovllm::server {
namespace {

enum class Status { kInProgress, kCompleted, kIncomplete, kFailed };

const char* status_name(Status status) {
  switch (status) {
    case Status::kInProgress:
      return "in_progress";
    case Status::kCompleted:
      return "completed";
    case Status::kIncomplete:
      return "incomplete";
    case Status::kFailed:
      return "failed";
  }
  return "";
}

// How a block is an item, and what the events of its text are named.
struct ItemForm {
  const char* id_prefix;
  const char* type;
  const char* events;  // and .delta, .done
  const char* whole;   // member that has all of the text
  const char* part;    // type of the one part that has the text; null = the item itself has it
};

constexpr ItemForm kReasoningItem = {"rs_", "reasoning", "response.reasoning_text", "text",
                                     "reasoning_text"};
constexpr ItemForm kMessageItem = {"msg_", "message", "response.output_text", "text",
                                   "output_text"};
constexpr ItemForm kFunctionItem = {"fc_", "function_call", "response.function_call_arguments",
                                    "arguments", nullptr};
constexpr ItemForm kCustomItem = {"ctc_", "custom_tool_call", "response.custom_tool_call_input",
                                  "input", nullptr};

int64_t seconds_since_epoch() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// What the response object repeats of its request: the last members of an object.
std::string told_again(const RequestFields& fields, const ServedModel& model,
                       const SamplingParams& params, const ResponsesRequest& request) {
  const auto given = [&](const char* name, const Json& otherwise) {
    const Json* value = fields.find(name);
    return value == nullptr ? otherwise : *value;
  };
  Json text = {{"format", {{"type", "text"}}}};
  text.update(given("text", Json::object()));
  Json told = {{"instructions", given("instructions", nullptr)},
               {"model", model.names.front()},
               {"parallel_tool_calls", given("parallel_tool_calls", true)},
               {"previous_response_id", nullptr},
               {"reasoning", given("reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
               {"store", false},
               {"temperature", params.temperature},
               {"text", std::move(text)},
               {"tool_choice", given("tool_choice", "auto")},
               {"tools", request.shown_tools},
               {"top_p", params.top_p},
               {"truncation", given("truncation", "disabled")},
               {"max_output_tokens", given("max_output_tokens", nullptr)},
               {"max_tool_calls", given("max_tool_calls", nullptr)},
               {"metadata", given("metadata", Json::object())},
               {"user", given("user", nullptr)},
               {"safety_identifier", given("safety_identifier", nullptr)},
               {"prompt_cache_key", given("prompt_cache_key", nullptr)},
               {"background", false},
               {"service_tier", given("service_tier", "default")},
               {"top_logprobs", request.num_top_logprobs.value_or(0)}};
  for (const char* name : {"prompt_cache_retention", "prompt_cache_options"}) {
    if (const Json* value = fields.find(name)) told[name] = *value;
  }
  return told.dump(-1, ' ', false, Json::error_handler_t::replace).substr(1);
}

class Responses final : public AgentCall {
 public:
  Responses(const RequestFields& fields, ResponsesRequest&& request, const ServedModel& served,
            const std::string& id)
      : AgentCall(std::move(request.chat), served, id,
                  {.call_ids = "call_",
                   .max_tokens = request.max_output_tokens,
                   .parallel_tool_calls = fields.boolean("parallel_tool_calls", true),
                   .num_top_logprobs = request.num_top_logprobs,
                   .constraint = request.constraint}),
        tools_(std::move(request.tools)),
        created_(seconds_since_epoch()),
        told_(told_again(fields, served, requests.front().params, request)),
        logprobs_(served, requests.front()) {
    stream = fields.boolean("stream");
    ignored_fields = fields.unknown();
    ignored_fields.insert(ignored_fields.end(), request.left_out.begin(), request.left_out.end());
  }

 private:
  std::string begin() override {
    std::string out = response_event("response.created", Status::kInProgress);
    return out += response_event("response.in_progress", Status::kInProgress);
  }

  std::string open(const AnswerBlock& block) override {
    input_ = {};
    std::string out = item_event("response.output_item.added", block, Status::kInProgress);
    if (has_part(block)) out += part_event("response.content_part.added", block, "");
    return out;
  }

  std::string grow(const AnswerBlock& block, std::string_view piece) override {
    return is_custom(block) ? text_delta(block, input_.append(piece)) : text_delta(block, piece);
  }

  std::string close(const AnswerBlock& block) override {
    std::string out;
    if (is_custom(block)) out = text_delta(block, input_.finish());
    const std::string text = text_of(block);
    std::string members =
        fmt::format(R"({},"{}":{})", place_of(block), form_of(block).whole, json_text(text));
    // Deltas and the item have them, which take much more than the text.
    if (block.kind == AnswerBlock::Kind::kText) members += R"(,"logprobs":[])";
    if (!has_part(block)) members += R"(,"name":)" + json_text(tool_of(block).name);
    out += event(form_of(block).events + std::string(".done"), members);
    if (has_part(block)) out += part_event("response.content_part.done", block, text);
    return out + item_event("response.output_item.done", block, status_of_item(block));
  }

  std::string end() override {
    const Status status = status_of_end();
    return response_event(fmt::format("response.{}", status_name(status)), status) +
           event_of("[DONE]");
  }

  std::string fail(const ApiError& /*error*/) override {
    const std::string begun = num_events_ == 0 ? begin() : "";
    return begun + response_event("response.failed", Status::kFailed) + event_of("[DONE]");
  }

  std::string whole() override { return response_json(status_of_end()); }

  void take_logprobs(const RequestDelta& delta) override { logprobs_.take(delta); }

  void take_words(const AnswerBlock& block, size_t begin, size_t end) override {
    logprobs_.take_words(block, begin, end);
  }

  std::string event(const std::string& type, std::string_view members) {
    return event_of(
        fmt::format(R"({{"type":"{}","sequence_number":{},{}}})", type, num_events_++, members),
        type);
  }

  std::string response_event(const std::string& type, Status status) {
    return event(type, R"("response":)" + response_json(status));
  }

  std::string item_event(const char* type, const AnswerBlock& block, Status status) {
    return event(
        type, fmt::format(R"("output_index":{},"item":{})", block.index, item_json(block, status)));
  }

  std::string part_event(const char* type, const AnswerBlock& block, const std::string& text) {
    return event(type,
                 fmt::format(R"({},"part":{})", place_of(block), part_json(block, text, "[]")));
  }

  std::string text_delta(const AnswerBlock& block, std::string_view text) {
    if (text.empty()) return {};
    std::string members = fmt::format(R"({},"delta":{})", place_of(block), json_text(text));
    if (block.kind == AnswerBlock::Kind::kText) {
      members += R"(,"logprobs":)" + logprobs_.news(block);
    }
    return event(form_of(block).events + std::string(".delta"), members);
  }

  std::string item_id(const AnswerBlock& block) const {
    return fmt::format("{}{}_{}", form_of(block).id_prefix, id(), block.index);
  }

  std::string place_of(const AnswerBlock& block) const {
    return fmt::format(R"("item_id":{},"output_index":{}{})", json_text(item_id(block)),
                       block.index, has_part(block) ? R"(,"content_index":0)" : "");
  }

  std::string part_json(const AnswerBlock& block, const std::string& text,
                        const std::string& logprobs) const {
    const bool is_text = block.kind == AnswerBlock::Kind::kText;
    return fmt::format(R"({{"type":"{}","text":{}{}}})", form_of(block).part, json_text(text),
                       is_text ? fmt::format(R"(,"annotations":[],"logprobs":{})", logprobs) : "");
  }

  // One that is in progress is empty still.
  std::string item_json(const AnswerBlock& block, Status status) const {
    const bool is_empty = status == Status::kInProgress;
    const std::string text = is_empty ? "" : text_of(block);
    std::string members;
    if (has_part(block)) {
      members = fmt::format(R"({},"content":[{}])",
                            block.kind == AnswerBlock::Kind::kThought
                                ? R"("summary":[],"encrypted_content":null)"
                                : R"("role":"assistant")",
                            is_empty ? "" : part_json(block, text, logprobs_.all(block)));
    } else {
      const ResponsesTool tool = tool_of(block);
      members = fmt::format(R"("call_id":{},"name":{}{},"{}":{})", json_text(block.call_id),
                            json_text(tool.name),
                            tool.space.empty() ? "" : R"(,"namespace":)" + json_text(tool.space),
                            form_of(block).whole, json_text(text));
    }
    return fmt::format(R"({{"id":{},"type":"{}","status":"{}",{}}})", json_text(item_id(block)),
                       form_of(block).type, status_name(status), members);
  }

  std::string response_json(Status status) const {
    std::vector<std::string> items;
    for (const AnswerBlock& block : blocks()) {
      if (status == Status::kInProgress) break;
      items.push_back(item_json(block, status_of_item(block)));
    }
    const bool is_counted = status == Status::kCompleted || status == Status::kIncomplete;
    return fmt::format(R"({{"id":{},"object":"response","created_at":{},"status":"{}","error":{},)"
                       R"("incomplete_details":{},"output":[{}],"usage":{},{})",
                       json_text("resp_" + id()), created_, status_name(status),
                       status == Status::kFailed ? failure_json() : "null",
                       status == Status::kIncomplete ? R"({"reason":"max_output_tokens"})" : "null",
                       fmt::join(items, ","), is_counted ? usage_json() : "null", told_);
  }

  std::string usage_json() const {
    const AgentUsage used = usage();
    return fmt::format(R"({{"input_tokens":{},"input_tokens_details":{{"cached_tokens":{},)"
                       R"("cache_write_tokens":0}},"output_tokens":{},)"
                       R"("output_tokens_details":{{"reasoning_tokens":{}}},"total_tokens":{}}})",
                       used.num_prompt_tokens, used.num_cached_tokens, used.num_tokens,
                       used.num_reasoning_tokens, used.num_prompt_tokens + used.num_tokens);
  }

  std::string failure_json() const {
    const int status = error()->status();
    const char* code = status == 429  ? "rate_limit_exceeded"
                       : status < 500 ? "invalid_prompt"
                                      : "server_error";
    return fmt::format(R"({{"code":"{}","message":{}}})", code, json_text(error()->what()));
  }

  Status status_of_end() const {
    return finish_reason() == FinishReason::kLength ? Status::kIncomplete : Status::kCompleted;
  }

  // What cut the answer cut its last item.
  Status status_of_item(const AnswerBlock& block) const {
    const bool is_cut = error() || status_of_end() != Status::kCompleted;
    return is_cut && block.index + 1 == blocks().size() ? Status::kIncomplete : Status::kCompleted;
  }

  ResponsesTool tool_of(const AnswerBlock& block) const {
    const auto found = tools_.find(block.name);
    return found == tools_.end() ? ResponsesTool{.name = block.name} : found->second;
  }

  bool is_custom(const AnswerBlock& block) const {
    const auto found = tools_.find(block.name);  // of what is no call, it is empty
    return found != tools_.end() && found->second.is_custom;
  }

  bool has_part(const AnswerBlock& block) const { return form_of(block).part != nullptr; }

  const ItemForm& form_of(const AnswerBlock& block) const {
    switch (block.kind) {
      case AnswerBlock::Kind::kThought:
        return kReasoningItem;
      case AnswerBlock::Kind::kText:
        return kMessageItem;
      case AnswerBlock::Kind::kCall:
        return is_custom(block) ? kCustomItem : kFunctionItem;
    }
    return kMessageItem;
  }

  // As the client gets it.
  std::string text_of(const AnswerBlock& block) const {
    if (!is_custom(block)) return block.text;
    CustomInput input;
    std::string text = input.append(block.text);
    return text + input.finish();
  }

  const std::map<std::string, ResponsesTool, std::less<>> tools_;
  const int64_t created_;   // seconds
  const std::string told_;  // the last members of each response
  BlockLogprobs logprobs_;
  CustomInput input_ = {};  // of the open block
  size_t num_events_ = 0;
};

// Fields that are chat's are named as they are here.
[[noreturn]] void throw_with_own_name(const ApiError& error) {
  for (const auto& [of_chat, own] :
       {std::pair("messages", "input"), std::pair("reasoning_effort", "reasoning.effort")}) {
    if (error.param() == of_chat) {
      throw ApiError(error.status(), error.what(), own, error.code());
    }
  }
  throw;
}

}  // namespace

std::unique_ptr<ApiCall> parse_responses(std::string_view body, const ServedModel& model,
                                         const std::string& id) {
  const RequestFields fields(body, kResponsesRequest, model);
  ResponsesRequest request = translate_responses(fields);
  try {
    if (const auto effort = request.chat.find("reasoning_effort"); effort != request.chat.end()) {
      *effort = effort_for(model, effort->get<std::string>());
    }
    return std::make_unique<Responses>(fields, std::move(request), model, id);
  } catch (const ApiError& error) {
    throw_with_own_name(error);
  }
}

std::string responses_error_body(int status, const ErrorWords& error) {
  constexpr int kNoKey = 401;
  if (status == kNoKey) return kUnauthorized;
  return error_body(status, error.message, error.param, "", error.code);
}

std::string missing_response(std::string_view path) {
  path.remove_prefix(kResponsesPath.size());
  const std::string_view id = path.substr(0, path.find('/'));
  if (id == "compact" || id == "input_tokens") {
    return fmt::format("{}{} is not there; /v1/responses answers whole conversations.",
                       kResponsesPath, id);
  }
  return fmt::format("Response with id '{}' not found: this server stores no responses.",
                     printable(id));
}

}  // namespace nanovllm::server
