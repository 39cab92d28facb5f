#include "server/openai/chat_request.h"

#include <functional>
#include <utility>

#include "server/openai/prompt_tokens.h"
#include "text/chat_messages.h"

namespace nanovllm::server {

ChatRequest::ChatRequest(const RequestFields& fields, const ServedModel& model,
                         SamplingParams params)
    : model_(model), params_(std::move(params)), prompt_(render_chat(fields, model)) {
  const TranscriptFormat& format = model.format;
  is_parsed_ = model.make_parser && (!format.reasoning_parser.empty() ||
                                     (prompt_.tools && !format.tool_call_parser.empty()));
  turn_ = last_turn(prompt_.text);
}

SamplingParams ChatRequest::params() const {
  SamplingParams params = params_;
  if (is_parsed_) {
    for (const auto& [tag, token] : model_.tags.ids) params.marked_token_ids.push_back(token);
  }
  const RequestPreparer& preparer = model_.preparer;
  const bool is_bounded = params.thinking_token_budget.value_or(-1) >= 0;
  if (!is_bounded && !params.structured_outputs) return params;
  if (preparer.thinking_end.empty()) return params;
  // What the turn before says of thoughts is not the model's.
  ThinkingTags tags = preparer.thinking_tags(encode_prompt(turn_, false, model_));
  if (tags.num_prompt_tokens < 0 && thinks_at_once(model_.format, turn_)) {
    tags.num_prompt_tokens = 0;
  }
  params.thinking_tags = std::move(tags);
  return params;
}

std::vector<int32_t> ChatRequest::encode() const {
  return encode_prompt(prompt_.text, prompt_.add_special_tokens, model_);
}

Turn ChatRequest::make_turn(const TurnOptions& options) const {
  std::unique_ptr<TranscriptParser> parser;
  if (is_parsed_) {
    parser = model_.make_parser(model_.format, model_.tags, turn_, prompt_.tools.get());
  }
  return {std::move(parser), model_.tags, options};
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
}

}  // namespace nanovllm::server
