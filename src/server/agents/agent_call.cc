#include "server/agents/agent_call.h"

#include <algorithm>
#include <utility>

#include "nanovllm/tokenizer.h"
#include "server/openai/prompt_tokens.h"
#include "server/transcript/harmony_parser.h"

namespace nanovllm::server {
namespace {

constexpr const char* kBlanks = " \t\r\n\f\v";

// Tokens of a prompt and its answer.
size_t context_of(const ServedModel& model) {
  const EngineLimits& limits = model.preparer.info;
  return static_cast<size_t>(limits.max_num_tokens());
}

// Where the character that begins at `from` ends.
size_t end_of_character(std::string_view text, size_t from) {
  const auto goes_on = [&](size_t at) { return (static_cast<unsigned char>(text[at]) >> 6) == 2; };
  size_t end = from + 1;
  while (end < text.size() && goes_on(end)) ++end;
  return std::min(end, text.size());
}

}  // namespace

PromptTooLong::PromptTooLong(size_t num_tokens, size_t most)
    : ApiError(400,
               fmt::format("The prompt has {} tokens, and this model's context has room for {}. "
                           "Please reduce the length of the prompt.",
                           num_tokens, most),
               {}, kContextExceeded),
      num_tokens_(num_tokens),
      most_(most) {}

ChatRequest agent_request(Json chat, const ServedModel& model) {
  const RequestFields fields = RequestFields::of(std::move(chat), "ChatRequest", model);
  SamplingParams params = model.defaults;
  params.max_tokens = kAsManyAsFit;
  fields.read_all(params, {"max_tokens", "logprobs", "n"});
  return {fields, model, std::move(params)};
}

size_t most_counted_tokens(const ServedModel& model) {
  constexpr size_t kAnyways = 1 << 20;  // a second's work
  return std::max(context_of(model), kAnyways);
}

std::vector<int32_t> agent_prompt(const ChatRequest& request, const ServedModel& model) {
  const Tokenizer* tokenizer = model.preparer.tokenizer;
  if (tokenizer == nullptr) refuse("", "{} has no tokenizer.", model.names.front());
  const ChatPrompt& prompt = request.prompt();
  return tokenizer->encode(prompt.text, prompt.add_special_tokens, most_counted_tokens(model));
}

std::string effort_for(const ServedModel& model, const std::string& effort) {
  if (model.format.reasoning_parser != kHarmonyReasoning) return effort;
  if (effort == "none" || effort == "minimal") return "low";
  return effort == "xhigh" || effort == "max" ? "high" : effort;
}

AgentCall::AgentCall(Json chat, const ServedModel& model, const std::string& id,
                     const AgentOptions& options)
    : model_(model),
      id_(id),
      call_ids_(options.call_ids),
      request_(agent_request(std::move(chat), model)),
      turn_(request_.make_turn({.parallel_tool_calls = options.parallel_tool_calls})) {
  const size_t context = context_of(model);
  const std::vector<int32_t> ids = agent_prompt(request_, model);
  if (ids.size() >= context) {
    throw PromptTooLong(ids.size(), ids.size() > context ? context : context - 1);
  }
  SamplingParams params = request_.params(options.constraint);
  const auto left = static_cast<int64_t>(context - ids.size());
  if (options.max_tokens && *options.max_tokens < left) {
    params.max_tokens = static_cast<int>(*options.max_tokens);
  }
  params.logprobs = options.num_top_logprobs;
  wants_events_soon = options.num_top_logprobs.has_value();
  requests.push_back(prepare_request(ids, params, model, options.constraint));
  usage_.num_prompt_tokens = ids.size();
  request_.drop_text();
}

AgentUsage AgentCall::usage() const {
  AgentUsage usage = usage_;
  if (model_.tags.end_of_thought) usage.num_reasoning_tokens = turn_.num_reasoning_tokens();
  return usage;
}

std::string AgentCall::on_events(size_t /*prompt*/, std::span<const EngineEvent> events) {
  for (const EngineEvent& event : events) {
    if (is_over()) break;
    if (const auto* delta = std::get_if<RequestDelta>(&event)) {
      if (!delta->logprobs.empty()) take_logprobs(*delta);
      take(*delta);
    } else if (const auto* over = std::get_if<RequestEnd>(&event)) {
      take_end(*over);
    } else if (const auto* error = std::get_if<RequestError>(&event)) {
      take_error(ApiError(status_of(error->code), error->message));
    }
  }
  flush();
  return std::exchange(drawn_, {});
}

void AgentCall::take_end(const RequestEnd& over) {
  if (over.finish_reason == FinishReason::kAbort) {
    const auto* why = std::get_if<std::string>(&over.stop_reason);
    return take_error(
        ApiError(500, why != nullptr ? *why : "The answer was broken off by the engine."));
  }
  draw_begin();
  turn_.finish();
  take_news();
  usage_.num_cached_tokens = static_cast<size_t>(over.num_cached_tokens);
  finish_reason_ = over.finish_reason;
  stop_reason_ = over.stop_reason;
  close_block();
  if (stream) drawn_ += end();
}

void AgentCall::take_error(const ApiError& error) {
  flush();
  error_.emplace(error);
  if (stream) drawn_ += fail(error);
}

void AgentCall::draw_begin() {
  if (stream && !std::exchange(has_begun_, true)) drawn_ += begin();
}

bool AgentCall::next_piece(std::string& out) {
  if (stream) return false;
  if (error_) throw ApiError(*error_);
  out += whole();
  return false;
}

// What a parser makes of a piece does not say in which order its text and its calls came, so it is
// given characters one by one. Of calls that it is sure of only later (TranscriptParser says
// which), text and calls come at once: there the text is the block before them, wherever it stood.
void AgentCall::take(const RequestDelta& delta) {
  draw_begin();
  usage_.num_tokens += delta.token_ids.size();
  const size_t size = delta.text.size();
  auto mark = delta.marks.begin();
  size_t from = 0, to = 0;  // bytes
  do {
    to = request_.is_parsed() ? end_of_character(delta.text, from) : size;
    RequestDelta piece;
    piece.text = delta.text.substr(from, to - from);
    if (from == 0) piece.token_ids = delta.token_ids;
    for (; mark != delta.marks.end() && (mark->offset < to || to == size); ++mark) {
      piece.marks.push_back({mark->offset - from, mark->token_id});
    }
    num_read_ += to - from;
    turn_.append(piece);
    take_news();
    from = to;
  } while (from < size);
}

void AgentCall::take_news() {
  const TranscriptDelta& news = turn_.news();
  add_words(AnswerBlock::Kind::kThought, news.reasoning);
  add_words(AnswerBlock::Kind::kText, news.content);
  for (const ToolCallDelta& call : news.tool_calls) {
    if (call.index != call_) {
      call_ = call.index;
      open_block({.kind = AnswerBlock::Kind::kCall,
                  .name = call.name,
                  .call_id = request_.call_id(call_ids_, id_, 0, call.index)});
    }
    extend_block(call.arguments);
  }
  turn_.clear_news();
}

void AgentCall::add_words(AnswerBlock::Kind kind, const std::string& words) {
  if (words.empty()) return;
  if (kind == AnswerBlock::Kind::kThought) is_behind_thought_ = true;
  if (is_open_ && blocks_.back().kind == kind) {
    blanks_.clear();
    return extend_block(words);
  }
  if (kind != std::exchange(blanks_kind_, kind)) blanks_.clear();
  blanks_ += words;
  if (words.find_first_not_of(kBlanks) == words.npos) return;
  std::string text = std::exchange(blanks_, {});
  // The template's newlines behind a thought, which it writes again.
  if (kind == AnswerBlock::Kind::kText && std::exchange(is_behind_thought_, false)) {
    text.erase(0, text.find_first_not_of(kBlanks));
  }
  open_block({.kind = kind});
  extend_block(text);
}

void AgentCall::open_block(AnswerBlock block) {
  close_block();
  blanks_.clear();
  if (block.kind == AnswerBlock::Kind::kCall) is_behind_thought_ = false;
  block.index = blocks_.size();
  blocks_.push_back(std::move(block));
  is_open_ = true;
  if (stream) drawn_ += open(blocks_.back());
}

void AgentCall::extend_block(const std::string& text) {
  blocks_.back().text += text;
  if (stream) grown_ += text;
  // What a parser held back, and shows now, is the end of what it has read.
  take_words(blocks_.back(), num_read_ - std::min(text.size(), num_read_), num_read_);
}

void AgentCall::close_block() {
  flush();
  if (std::exchange(is_open_, false) && stream) drawn_ += close(blocks_.back());
}

void AgentCall::flush() {
  if (!grown_.empty()) drawn_ += grow(blocks_.back(), grown_);
  grown_.clear();
}

}  // namespace nanovllm::server
