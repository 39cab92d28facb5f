// /v1/chat/completions
#include <nlohmann/json.hpp>

#include "nanovllm/tokenizer.h"
#include "server/openai/answer.h"
#include "server/openai/chat_request.h"

namespace nanovllm::server {
namespace {

class Chat final : public Answer {
 public:
  Chat(const RequestFields& fields, const ServedModel& served, const std::string& id)
      : Answer(fields, served, {"chatcmpl-", "chat.completion", "chat.completion.chunk"}, id),
        id_(id) {
    SamplingParams params = served.defaults;
    read_params(fields, params);
    include_reasoning_ = fields.boolean("include_reasoning", true);
    shows_prompt_text_ = fields.boolean("return_prompt_text");
    request_.emplace(fields, served, std::move(params));
    prepare(request_->encode(), shows_prompt_text_ ? request_->prompt().text : std::string(),
            request_->params(fields.constraint()));
    const TurnOptions options = {
        .include_reasoning = include_reasoning_,
        .parallel_tool_calls = fields.boolean("parallel_tool_calls", true)};
    for (size_t i = 0; i < choices().size(); ++i) turns_.push_back(request_->make_turn(options));
    request_->drop_text();
    hides_tokens_ = request_->is_parsed() && !include_reasoning_;
    if (hides_tokens_) num_top_.reset();
  }

 private:
  void read_params(const RequestFields& fields, SamplingParams& params) {
    params.max_tokens = kAsManyAsFit;
    fields.read_all(params, {"max_tokens", "logprobs"});
    const auto newer = fields.integer("max_completion_tokens");
    const auto older = fields.integer("max_tokens");
    const char* name = newer ? "max_completion_tokens" : "max_tokens";
    const auto max_tokens = newer ? newer : older;
    check_max_tokens(name, max_tokens);
    if (max_tokens) {
      if (*max_tokens < 1) refuse(name, "max_tokens must be at least 1, got {}.", *max_tokens);
      params.max_tokens = static_cast<int>(*max_tokens);
    }
    const bool wants_logprobs = fields.boolean("logprobs");
    const int64_t top = fields.integer("top_logprobs").value_or(0);
    if (top < -1 || top > INT32_MAX) {
      refuse("top_logprobs", "top_logprobs must be non-negative or -1, got {}.", top);
    }
    if (top != 0 && !wants_logprobs) {
      refuse("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.");
    }
    params.logprobs.reset();
    if (wants_logprobs) num_top_ = params.logprobs = static_cast<int>(top);
    if (stream && params.prompt_logprobs.value_or(0) != 0) {
      refuse("prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`.");
    }
    echo_ = fields.boolean("echo");
    if (echo_ && !stream && !params.prompt_logprobs) params.prompt_logprobs = static_cast<int>(top);
  }

  // Whose turn the answer is; and of the last message, what the answer goes on with.
  const std::string& role() const { return request_->prompt().role; }
  const std::string& last_content() const { return request_->prompt().last_content; }

  std::string first_chunks(size_t prompt_index) override {
    const PromptFacts& prompt = prompt_of(prompt_index);
    const std::string more =
        fmt::format(R"(,"prompt_token_ids":{},"prompt_text":{})", token_ids_json(prompt.token_ids),
                    shows_prompt_text_ ? json_text(prompt.text) : "null");
    std::string out;
    const auto add = [&](const std::string& delta, std::string_view members) {
      for (size_t choice = 0; choice < choices().size(); ++choice) {
        out +=
            chunk(choice,
                  fmt::format(R"({{"index":{},"delta":{},"logprobs":null,"finish_reason":null}})",
                              choice, delta),
                  false, members);
      }
    };
    add(fmt::format(R"({{"role":{},"content":""}})", json_text(role())), more);
    if (echo_ && !last_content().empty()) {
      add(fmt::format(R"({{"content":{}}})", json_text(last_content())), {});
    }
    return out;
  }

  void take(size_t index, const RequestDelta& delta) override {
    for (size_t i = 0; num_top_ && i < delta.logprobs.size(); ++i) {
      choices()[index].logprobs.append(delta.logprobs[i]);
    }
    turns_[index].append(delta);
  }

  void end(size_t choice) override { turns_[choice].finish(); }

  std::string take_chunk(size_t index) override {
    Turn& turn = turns_[index];
    Choice& choice = choices()[index];
    const bool is_last = choice.finish_reason != FinishReason::kNone;
    const bool shows_ids = return_token_ids_ && !hides_tokens_ && !choice.token_ids.empty();
    const bool says_nothing =
        turn.news() == TranscriptDelta{} && choice.logprobs.empty() && !shows_ids;
    if (request_->is_parsed() && says_nothing && !is_last) return {};
    std::string json = fmt::format(
        R"({{"index":{},"delta":{},"logprobs":{},"finish_reason":{},{}"token_ids":{}}})", index,
        delta_json(turn, index), logprobs_json(choice), finish_json(index),
        is_last ? fmt::format(R"("stop_reason":{},)", json_of(choice.stop_reason)) : "",
        shown_ids_json(choice));
    turn.clear_news();
    return json;
  }

  std::string shown_ids_json(const Choice& choice) const {
    return hides_tokens_ ? "null" : token_ids_json(choice.token_ids);
  }

  std::string call_id(size_t choice, int call) const {
    return request_->call_id("chatcmpl-tool-", id_, choice, call);
  }

  // [{id, type, index, function: {name, arguments}}, ...]: with the index only in chunks, and with
  // id, type and name where the call begins.
  std::string calls_json(const Turn& turn, size_t choice) const {
    std::vector<std::string> calls;
    for (const ToolCallDelta& call : turn.news().tool_calls) {
      std::string head, function;
      if (!call.name.empty()) {
        head = fmt::format(R"("id":"{}","type":"function",)", call_id(choice, call.index));
        function = fmt::format(R"("name":{},)", json_text(call.name));
      }
      if (stream) head += fmt::format(R"("index":{},)", call.index);
      calls.push_back(fmt::format(R"({{{}"function":{{{}"arguments":{}}}}})", head, function,
                                  json_text(call.arguments)));
    }
    return fmt::format("[{}]", fmt::join(calls, ","));
  }

  std::string delta_json(const Turn& turn, size_t choice) const {
    const TranscriptDelta& delta = turn.news();
    std::vector<std::string> members;
    if (!turn.is_parsed() || !delta.content.empty()) {
      members.push_back("\"content\":" + json_text(delta.content));
    }
    if (!delta.reasoning.empty()) {
      members.push_back(
          fmt::format(R"("reasoning":{0},"reasoning_content":{0})", json_text(delta.reasoning)));
    }
    if (!delta.tool_calls.empty()) members.push_back("\"tool_calls\":" + calls_json(turn, choice));
    return fmt::format("{{{}}}", fmt::join(members, ","));
  }

  std::string message_json(const Turn& turn, size_t choice) const {
    const TranscriptDelta& message = turn.news();
    const bool has_reasoning = !message.reasoning.empty(), calls = !message.tool_calls.empty();
    const std::string content = (echo_ ? last_content() : "") + message.content;
    const bool is_null = content.empty() && (has_reasoning || calls);
    const std::string reasoning = has_reasoning ? json_text(message.reasoning) : "null";
    return fmt::format(R"({{"role":{},"content":{},"refusal":null,"annotations":null,"audio":null,)"
                       R"("function_call":null{},"reasoning":{}{}}})",
                       json_text(role()), is_null ? "null" : json_text(content),
                       calls ? ",\"tool_calls\":" + calls_json(turn, choice) : "", reasoning,
                       has_reasoning ? ",\"reasoning_content\":" + reasoning : "");
  }

  void append_logprobs(Choice& choice, size_t position, std::string& out) const {
    const auto logprobs = choice.logprobs.at(position, model().preparer.tokenizer);
    choice.logprob_text.append_chat(*logprobs, *num_top_, out);
  }

  // Of a chunk.
  std::string logprobs_json(Choice& choice) const {
    if (!num_top_) return "null";
    std::string list;
    for (size_t i = 0; i < choice.logprobs.size(); ++i) {
      if (i > 0) list += ',';
      append_logprobs(choice, i, list);
    }
    return fmt::format(R"({{"content":[{}]}})", list);
  }

  std::string finish_json(size_t index) {
    const FinishReason reason = choices()[index].finish_reason;
    if (reason == FinishReason::kNone) return "null";
    // As OpenAI's: a call that was asked for by name is no news.
    const bool calls = turns_[index].has_called() && reason == FinishReason::kStop &&
                       !request_->prompt().is_call_named;
    return json_text(calls ? "tool_calls" : to_string(reason));
  }

  void add_choice(size_t index) override {
    Choice& choice = choices()[index];
    add_text(fmt::format(R"({{"index":{},"message":{},"logprobs":)", index,
                         message_json(turns_[index], index)));
    add_text(num_top_ ? R"({"content":[)" : "null");
    if (num_top_) {
      add_list(choice.logprobs.size(),
               [this, &choice](size_t i, std::string& out) { append_logprobs(choice, i, out); });
      add_text("]}");
    }
    add_text(fmt::format(
        R"(,"finish_reason":{},"stop_reason":{},"token_ids":{},"routed_experts":null}})",
        finish_json(index), json_of(choice.stop_reason), shown_ids_json(choice)));
  }

  std::string completion_details(std::optional<size_t> choice) const override {
    if (!model().tags.end_of_thought) return "null";
    size_t count = 0;
    for (size_t i = choice.value_or(0); i < (choice ? *choice + 1 : turns_.size()); ++i) {
      count += turns_[i].num_reasoning_tokens();
    }
    return fmt::format(R"({{"reasoning_tokens":{}}})", count);
  }

  void add_members() override {
    const PromptFacts& prompt = prompt_of(0);
    add_text(R"(,"prompt_logprobs":)");
    add_prompt_logprobs(prompt);
    add_text(fmt::format(R"(,"prompt_token_ids":{},"prompt_text":{},)"
                         R"("kv_transfer_params":null,"ec_transfer_params":null,"metrics":null)",
                         token_ids_json(prompt.token_ids),
                         shows_prompt_text_ ? json_text(prompt.text) : "null"));
  }

  std::string id_;
  std::optional<ChatRequest> request_;
  std::optional<int> num_top_;
  bool echo_ = false;
  bool include_reasoning_ = true;
  bool shows_prompt_text_ = false;
  bool hides_tokens_ = false;  // for they would show the reasoning
  std::vector<Turn> turns_;    // a choice
};

}  // namespace

std::unique_ptr<ApiCall> parse_chat(std::string_view body, const ServedModel& model,
                                    const std::string& id) {
  return std::make_unique<Chat>(RequestFields(body, "ChatRequest", model), model, id);
}

}  // namespace nanovllm::server
