// /v1/chat/completions
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "nanovllm/tokenizer.h"
#include "server/answer.h"
#include "server/chat_prompt.h"

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
    parallel_tool_calls_ = fields.boolean("parallel_tool_calls", true);
    shows_prompt_text_ = fields.boolean("return_prompt_text");
    ChatPrompt prompt = render_chat(fields, served);
    role_ = std::move(prompt.role);
    last_content_ = std::move(prompt.last_content);
    with_parser_ =
        served.make_parser && (!served.format.reasoning_parser.empty() || prompt.has_tools);
    // Tags may be special tokens, which the parser must see.
    if (needs_special_tokens(served.format, prompt.has_tools)) params.skip_special_tokens = false;
    prepare(encode(prompt.text, prompt.add_special_tokens),
            shows_prompt_text_ ? prompt.text : std::string(), params);
    if (const Tokenizer* tokenizer = served.preparer.tokenizer;
        tokenizer != nullptr && !served.format.reasoning_parser.empty()) {
      think_ = tokenizer->token_to_id("<think>");
      end_of_think_ = tokenizer->token_to_id("</think>");
    }
    const std::string_view turn = last_turn(prompt.text);  // once, for there may be many choices
    for (size_t i = 0; i < num_choices(); ++i) {
      State& state =
          states_.emplace_back(LogprobText(served.preparer.tokenizer, return_as_token_ids_));
      if (with_parser_) state.parser = served.make_parser(served.format, turn, prompt.has_tools);
    }
  }

 private:
  struct State {
    explicit State(LogprobText writer) : logprob_text(std::move(writer)) {}
    LogprobText logprob_text;
    std::unique_ptr<TranscriptParser> parser = {};  // null = all is content
    bool has_called = false;
    bool has_reasoned = false;
    bool may_reason = true;    // the end of its reasoning has not come
    size_t num_reasoning = 0;  // tokens before that
    // What follows is of a whole answer, or of one chunk.
    TranscriptDelta message = {};
    std::vector<int32_t> token_ids = {};
    std::string logprobs = {};
    FinishReason finish_reason = FinishReason::kNone;
    StopReason stop_reason = {};
  };

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
    if (top < -1 || top > INT32_MAX)
      refuse("top_logprobs", "top_logprobs must be non-negative or -1, got {}.", top);
    if (top != 0 && !wants_logprobs)
      refuse("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.");
    params.logprobs.reset();
    if (wants_logprobs) num_top_ = params.logprobs = static_cast<int>(top);
    if (stream && params.prompt_logprobs.value_or(0) != 0)
      refuse("prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`.");
    echo_ = fields.boolean("echo");
    if (echo_ && !stream && !params.prompt_logprobs) params.prompt_logprobs = static_cast<int>(top);
  }

  std::string first_chunks(size_t prompt_index) override {
    const PromptFacts& prompt = prompt_of(prompt_index);
    const std::string more = fmt::format(R"(,"prompt_token_ids":{},"prompt_text":{})",
                                         return_token_ids_ ? json_of(prompt.token_ids) : "null",
                                         shows_prompt_text_ ? json_text(prompt.text) : "null");
    std::string out;
    const auto add = [&](const std::string& delta, std::string_view members) {
      for (size_t choice = 0; choice < num_choices(); ++choice) {
        out +=
            chunk(choice,
                  fmt::format(R"({{"index":{},"delta":{},"logprobs":null,"finish_reason":null}})",
                              choice, delta),
                  false, members);
      }
    };
    add(fmt::format(R"({{"role":{},"content":""}})", json_text(role_)), more);
    if (echo_ && !last_content_.empty())
      add(fmt::format(R"({{"content":{}}})", json_text(last_content_)), {});
    return out;
  }

  std::string gain(size_t choice, Gain&& gained) override {
    State& state = states_[choice];
    take_text(state, gained);
    const bool hides_tokens = with_parser_ && !include_reasoning_;  // they would show the reasoning
    if (num_top_ && !hides_tokens) {
      for (const PositionLogprobs& position : gained.logprobs)
        state.logprob_text.append_chat(position, *num_top_, state.logprobs);
    }
    if (return_token_ids_ && !hides_tokens)
      state.token_ids.insert(state.token_ids.end(), gained.token_ids.begin(),
                             gained.token_ids.end());
    if (gained.end != nullptr) {
      state.finish_reason = gained.end->finish_reason;
      state.stop_reason = gained.end->stop_reason;
    }
    if (!stream) return {};
    const bool is_last = gained.end != nullptr;
    const bool says_nothing =
        state.message == TranscriptDelta{} && state.logprobs.empty() && state.token_ids.empty();
    if (with_parser_ && says_nothing && !is_last) return {};
    std::string json = fmt::format(
        R"({{"index":{},"delta":{},"logprobs":{},"finish_reason":{},{}"token_ids":{}}})", choice,
        delta_json(state, choice), logprobs_json(state), finish_json(state),
        is_last ? fmt::format(R"("stop_reason":{},)", json_of(state.stop_reason)) : "",
        return_token_ids_ && !hides_tokens ? json_of(state.token_ids) : "null");
    state.message = {};
    state.token_ids.clear();
    state.logprobs.clear();
    return chunk(choice, json, is_last);
  }

  void take_text(State& state, Gain& gained) const {
    for (const int32_t id : gained.token_ids) {
      state.may_reason = state.may_reason && end_of_think_ != id;
      state.num_reasoning += state.may_reason && think_ != id;
    }
    if (state.parser == nullptr) {
      state.message.content += gained.text;
      return;
    }
    add_delta(state, state.parser->append(gained.text));
    if (gained.end != nullptr) add_delta(state, state.parser->finish());
  }

  void add_delta(State& state, TranscriptDelta&& delta) const {
    state.has_reasoned = state.has_reasoned || !delta.reasoning.empty();
    if (include_reasoning_) state.message.reasoning += delta.reasoning;
    state.message.content += delta.content;
    std::vector<ToolCallDelta>& calls = state.message.tool_calls;
    for (ToolCallDelta& call : delta.tool_calls) {
      if (!parallel_tool_calls_ && call.index > 0) continue;
      state.has_called = true;
      if (!calls.empty() && calls.back().index == call.index) {
        calls.back().name += call.name;
        calls.back().arguments += call.arguments;
      } else {
        calls.push_back(std::move(call));
      }
    }
  }

  std::string call_id(size_t choice, int call) const {
    const size_t hash = std::hash<std::string>()(fmt::format("{} {} {}", id_, choice, call));
    return fmt::format("chatcmpl-tool-{:016x}", hash);
  }

  std::string delta_json(const State& state, size_t choice) const {
    const TranscriptDelta& delta = state.message;
    std::vector<std::string> members;
    if (state.parser == nullptr || !delta.content.empty())
      members.push_back("\"content\":" + json_text(delta.content));
    if (!delta.reasoning.empty()) {
      const std::string text = json_text(delta.reasoning);
      members.push_back(fmt::format(R"("reasoning":{},"reasoning_content":{})", text, text));
    }
    std::vector<std::string> calls;
    for (const ToolCallDelta& call : delta.tool_calls) {
      const std::string arguments = json_text(call.arguments);
      calls.push_back(call.name.empty()
                          ? fmt::format(R"({{"index":{},"function":{{"arguments":{}}}}})",
                                        call.index, arguments)
                          : fmt::format(R"({{"id":"{}","type":"function","index":{},)"
                                        R"("function":{{"name":{},"arguments":{}}}}})",
                                        call_id(choice, call.index), call.index,
                                        json_text(call.name), arguments));
    }
    if (!calls.empty())
      members.push_back(fmt::format("\"tool_calls\":[{}]", fmt::join(calls, ",")));
    return fmt::format("{{{}}}", fmt::join(members, ","));
  }

  std::string logprobs_json(const State& state) const {
    const bool has_some = num_top_ && !(with_parser_ && !include_reasoning_);
    return has_some ? fmt::format(R"({{"content":[{}]}})", state.logprobs) : "null";
  }

  std::string finish_json(const State& state) const {
    if (state.finish_reason == FinishReason::kNone) return "null";
    const bool calls = state.has_called && state.finish_reason == FinishReason::kStop;
    return json_text(calls ? "tool_calls" : to_string(state.finish_reason));
  }

  std::string message_json(const State& state, size_t choice) const {
    const TranscriptDelta& message = state.message;
    const bool has_reasoning = !message.reasoning.empty();
    const std::string content = (echo_ ? last_content_ : "") + message.content;
    const bool is_null = content.empty() && (has_reasoning || !message.tool_calls.empty());
    std::string out =
        fmt::format(R"({{"role":{},"content":{},"refusal":null,"annotations":null,"audio":null,)"
                    R"("function_call":null)",
                    json_text(role_), is_null ? "null" : json_text(content));
    std::vector<std::string> calls;
    for (const ToolCallDelta& call : message.tool_calls) {
      calls.push_back(fmt::format(
          R"({{"id":"{}","type":"function","function":{{"name":{},"arguments":{}}}}})",
          call_id(choice, call.index), json_text(call.name), json_text(call.arguments)));
    }
    if (!calls.empty()) out += fmt::format(",\"tool_calls\":[{}]", fmt::join(calls, ","));
    const std::string reasoning = has_reasoning ? json_text(message.reasoning) : "null";
    out += ",\"reasoning\":" + reasoning;
    if (has_reasoning) out += ",\"reasoning_content\":" + reasoning;
    return out + '}';
  }

  std::string whole_choice(size_t choice) override {
    const State& state = states_[choice];
    return fmt::format(
        R"({{"index":{},"message":{},"logprobs":{},"finish_reason":{},"stop_reason":{},)"
        R"("token_ids":{},"routed_experts":null}})",
        choice, message_json(state, choice), logprobs_json(state), finish_json(state),
        json_of(state.stop_reason),
        return_token_ids_ && !(with_parser_ && !include_reasoning_) ? json_of(state.token_ids)
                                                                    : "null");
  }

  // Known where the end of the reasoning is a token.
  std::string completion_details(std::optional<size_t> choice) const override {
    if (!end_of_think_) return "null";
    size_t count = 0;
    const auto add = [&](const State& state) { count += state.has_reasoned * state.num_reasoning; };
    if (choice) {
      add(states_[*choice]);
    } else {
      std::ranges::for_each(states_, add);
    }
    return fmt::format(R"({{"reasoning_tokens":{}}})", count);
  }

  std::string whole_members() override {
    const PromptFacts& prompt = prompt_of(0);
    return fmt::format(R"(,"prompt_logprobs":{},"prompt_token_ids":{},"prompt_text":{},)"
                       R"("kv_transfer_params":null,"ec_transfer_params":null,"metrics":null)",
                       prompt_logprobs_json(prompt),
                       return_token_ids_ ? json_of(prompt.token_ids) : "null",
                       shows_prompt_text_ ? json_text(prompt.text) : "null");
  }

  std::string id_;
  std::string role_;          // of the answer
  std::string last_content_;  // of the last message, where the answer goes on with it
  std::optional<int> num_top_;
  bool echo_ = false;
  bool include_reasoning_ = true;
  bool parallel_tool_calls_ = true;
  bool shows_prompt_text_ = false;
  bool with_parser_ = false;
  std::optional<int32_t> think_, end_of_think_;  // tokens of the tags around the reasoning
  std::vector<State> states_;                    // a choice
};

}  // namespace

std::unique_ptr<ApiCall> parse_chat(std::string_view body, const ServedModel& model,
                                    const std::string& id) {
  return std::make_unique<Chat>(RequestFields(body, "ChatRequest", model), model, id);
}

}  // namespace nanovllm::server
