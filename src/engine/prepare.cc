#include "nanovllm/prepare.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "engine/parameter_error.h"
#include "engine/structured_outputs.h"
#include "engine/thinking_budget.h"
#include "nanovllm/chat.h"
#include "nanovllm/tokenizer.h"
#include "ops/sampling.h"

namespace nanovllm {

namespace {

void check_ids(const std::vector<int32_t>& ids, const char* name, int vocab_size) {
  constexpr size_t kMost = 200;  // bytes of a message's list
  std::string outside;
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocab_size) continue;
    if (outside.size() >= kMost) {
      outside += ", ...";
      break;
    }
    outside += fmt::format("{}{}", outside.empty() ? "" : ", ", id);
  }
  if (!outside.empty()) {
    refuse_parameter(name,
                     "token_id(s) [{}] in {} contain out-of-vocab token ids. Vocabulary size: {}",
                     outside, name, vocab_size);
  }
}

void need_tokenizer(const RequestPreparer& engine, const char* parameter, const char* who,
                    const char* instead) {
  if (engine.tokenizer != nullptr) return;
  throw ParameterError(
      ErrorCode::kUnsupported, parameter,
      fmt::format("{} a tokenizer, and {} has no tokenizer; {}.", who, engine.model_dir, instead));
}

bool has_budget(const SamplingParams& params) {
  return params.thinking_token_budget.value_or(-1) >= 0;
}

void check_params(const SamplingParams& params, const RequestPreparer& engine) {
  params.validate();
  for (const auto& [name, asked] : {std::pair{"logprobs", params.logprobs},
                                    std::pair{"prompt_logprobs", params.prompt_logprobs}}) {
    if (asked != -1 || engine.info.vocab_size <= kMaxLogprobs) continue;
    refuse_parameter(
        name,
        "{0} of -1 asks for the whole vocabulary, {1} tokens, which is greater than max "
        "allowed: {2}; use {0} of {2}.",
        name, engine.info.vocab_size, kMaxLogprobs);
  }
  if (params.priority != 0 && !engine.info.takes_priorities) {
    refuse_parameter(
        "priority",
        "Got priority {} but Priority scheduling is not enabled; set scheduling_policy to "
        "priority.",
        params.priority);
  }
  std::vector<int32_t> biased;
  for (const auto& [id, bias] : params.logit_bias) biased.push_back(id);
  check_ids(biased, "logit_bias", engine.info.vocab_size);
  check_ids(params.stop_token_ids, "stop_token_ids", engine.info.vocab_size);
  if (params.allowed_token_ids) {
    check_ids(*params.allowed_token_ids, "allowed_token_ids", engine.info.vocab_size);
  }
  if (params.thinking_tags) {
    const ThinkingTags& tags = *params.thinking_tags;
    const bool may_be_none = tags.end_ids.empty() && !has_budget(params);
    if (tags.start_ids.empty() != may_be_none || tags.end_ids.empty() != may_be_none) {
      refuse_parameter("thinking_tags", "thinking_tags need a start and an end.");
    }
    check_ids(tags.start_ids, "thinking_tags", engine.info.vocab_size);
    check_ids(tags.end_ids, "thinking_tags", engine.info.vocab_size);
  }
  if (!params.stop.empty()) {
    need_tokenizer(engine, "stop", "stop strings need", "use stop_token_ids");
  }
  if (!params.bad_words.empty()) {
    need_tokenizer(engine, "bad_words", "bad_words need", "use logit_bias");
  }
  if (params.structured_outputs) {
    need_tokenizer(engine, "structured_outputs", "structured_outputs need", "leave them out");
  }
}

// Last, for it costs most.
void compile_grammar(AddRequest& request, const RequestPreparer& engine) {
  const auto& asked = request.params.structured_outputs;
  request.grammar =
      asked && engine.grammars != nullptr ? compile(*asked, *engine.grammars) : nullptr;
}

void check_length(int num_prompt_tokens, const SamplingParams& params, const EngineLimits& limits) {
  if (num_prompt_tokens == 0) {
    throw_error(ErrorCode::kInvalidArgument, "The decoder prompt cannot be empty");
  }
  if (num_prompt_tokens > limits.max_model_len) {
    throw_error(ErrorCode::kInvalidArgument,
                "The decoder prompt (length {}) is longer than the maximum model length of {}. "
                "Make sure that `max_model_len` is no smaller than the number of text tokens.",
                num_prompt_tokens, limits.max_model_len);
  }
  if (num_prompt_tokens == limits.max_model_len) {
    throw_error(ErrorCode::kInvalidArgument,
                "The decoder prompt (length {}) plus the number of requested output tokens (at "
                "least 1) is longer than the maximum model length of {}. Make sure that "
                "`max_model_len` is no smaller than the number of text tokens (prompt + requested "
                "output tokens).",
                num_prompt_tokens, limits.max_model_len);
  }
  const int max_tokens = params.max_tokens == kAsManyAsFit ? 1 : params.max_tokens;
  // The last token is never fed back, so it needs no room.
  const int64_t num_tokens =
      std::min<int64_t>(int64_t{num_prompt_tokens} + max_tokens, limits.max_model_len) - 1;
  const int64_t num_blocks = limits.blocks_for(num_tokens);
  if (num_blocks > limits.num_kvcache_blocks) {
    refuse_parameter(
        max_tokens > 1 ? "max_tokens" : "",
        "The request can never fit in the KV cache: {} and up to {} need {} of {} tokens, but "
        "there {}; {}raise num_kvcache_blocks or kv_cache_memory.",
        counted(num_prompt_tokens, "prompt token"),
        counted(num_tokens + 1 - num_prompt_tokens, "output token"), counted(num_blocks, "block"),
        limits.kvcache_block_size,
        fmt::format("{} {}", limits.num_kvcache_blocks == 1 ? "is" : "are",
                    limits.num_kvcache_blocks),
        max_tokens > 1 ? "lower max_tokens, or " : "");
  }
}

void check_vocabulary(const std::vector<int32_t>& ids, int vocab_size) {
  const int32_t last = vocab_size - 1;
  uint32_t signs = 0;  // of the ids' distances to both ends; vectorised, unlike comparisons
  for (const int32_t t : ids) signs |= t | (static_cast<uint32_t>(last) - t);
  if (static_cast<int32_t>(signs) >= 0) return;
  const auto outside = std::ranges::find_if(ids, [&](int32_t t) { return t < 0 || t > last; });
  throw_error(ErrorCode::kInvalidArgument,
              "Token id {} is out of vocabulary; the model knows 0 to {}.", *outside, last);
}

// Of a prompt that holds other people's words only a tag at its very end, or with blanks behind it,
// opens the thought that the output goes on with.
ThinkingTags tags_before_text(const std::vector<int32_t>& prompt, const RequestPreparer& engine) {
  if (engine.thinking_start.empty() || engine.thinking_end.empty()) return {};
  ThinkingTags tags = engine.thinking_tags(prompt);
  if (tags.num_prompt_tokens > 0) {
    const std::string behind =
        engine.tokenizer->decode(std::span(prompt).last(tags.num_prompt_tokens), false);
    if (behind.find_first_not_of(" \t\r\n") != std::string::npos) tags.num_prompt_tokens = -1;
  }
  if (tags.num_prompt_tokens < 0 && !engine.may_think_first) return {};
  return tags;
}

// And finds out what depends on it and on the parameters.
void check_prompt(AddRequest& request, const RequestPreparer& engine) {
  SamplingParams& params = request.params;
  const std::vector<int32_t>& ids = request.prompt_token_ids;
  check_length(static_cast<int>(ids.size()), params, engine.info);
  check_vocabulary(ids, engine.info.vocab_size);
  if ((has_budget(params) || params.structured_outputs) && !params.thinking_tags) {
    // Set in any case: who checks it again, and knows of other tags, leaves it as it is.
    params.thinking_tags =
        has_budget(params) ? engine.thinking_tags(ids) : tags_before_text(ids, engine);
  }
  compile_grammar(request, engine);
}

}  // namespace

ThinkingTags RequestPreparer::thinking_tags(const std::vector<int32_t>& prompt) const {
  if (tokenizer == nullptr || thinking_start.empty() || thinking_end.empty()) {
    throw ParameterError(
        ErrorCode::kUnsupported, "thinking_token_budget",
        fmt::format("thinking_token_budget is set, but it is not known how {} marks its thoughts; "
                    "leave it out, or start the server with a --reasoning-parser.",
                    model_dir));
  }
  const auto ids_of = [&](const std::string& tag) {
    const auto id = tokenizer->token_to_id(tag);
    return id ? std::vector<int32_t>{*id} : tokenizer->encode(tag, false);
  };
  ThinkingTags tags = {ids_of(thinking_start), ids_of(thinking_end)};
  tags.num_prompt_tokens = num_open_thinking_tokens(prompt, tags);
  return tags;
}

CheckedRequest::CheckedRequest(AddRequest&& request, const RequestPreparer& engine)
    : request_(std::move(request)),
      limits_(static_cast<const EngineLimits&>(engine.info)),
      tokenizer_(engine.tokenizer) {}

// Nor is one whose content was moved elsewhere.
bool CheckedRequest::is_for(const RequestPreparer& engine) const {
  const bool has_grammar = request_.grammar != nullptr;
  return !request_.prompt_token_ids.empty() && tokenizer_ == engine.tokenizer &&
         limits_ == static_cast<const EngineLimits&>(engine.info) &&
         has_grammar == request_.params.structured_outputs.has_value();
}

std::vector<int32_t> RequestPreparer::token_ids(Prompt prompt) const {
  if (auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) return std::move(*ids);
  need_tokenizer(*this, "", "A text prompt needs", "give the prompt as token ids");
  return tokenizer->encode(std::get<std::string>(prompt));
}

std::vector<int32_t> RequestPreparer::token_ids_of_chat(const nlohmann::ordered_json& messages,
                                                        const nlohmann::ordered_json& tools,
                                                        const nlohmann::ordered_json& kwargs,
                                                        const ChatTextOptions& options) const {
  if (chat_template == nullptr) {
    throw_error(ErrorCode::kUnsupported, "{} has no chat template; give the prompt as text.",
                model_dir);
  }
  ChatText chat = chat_text(*chat_template, messages, tools, kwargs, options);
  if (tokenizer == nullptr) return token_ids(std::move(chat.text));  // which says so
  return tokenizer->encode(chat.text, chat.add_special_tokens);
}

bool RequestPreparer::must_compile(const SamplingParams& params) const {
  const auto& asked = params.structured_outputs;
  return asked && grammars != nullptr && !is_known(*asked, *grammars);
}

CheckedRequest RequestPreparer::check(AddRequest request) const {
  check_params(request.params, *this);
  check_prompt(request, *this);
  return {std::move(request), *this};
}

CheckedRequest RequestPreparer::check(AddRequest request, Prompt prompt) const {
  check_params(request.params, *this);
  request.prompt_token_ids = token_ids(std::move(prompt));
  check_prompt(request, *this);
  return {std::move(request), *this};
}

AddRequest RequestPreparer::prepare(uint64_t id, const Prompt& prompt,
                                    const SamplingParams& params) const {
  return check({.id = id, .params = params}, prompt).release();
}

AddRequest RequestPreparer::prepare_chat(uint64_t id, const nlohmann::ordered_json& messages,
                                         const nlohmann::ordered_json& tools,
                                         const nlohmann::ordered_json& kwargs,
                                         const SamplingParams& params,
                                         const ChatTextOptions& options) const {
  check_params(params, *this);
  AddRequest request = {.id = id,
                        .prompt_token_ids = token_ids_of_chat(messages, tools, kwargs, options),
                        .params = params};
  check_prompt(request, *this);
  return request;
}

}  // namespace nanovllm
