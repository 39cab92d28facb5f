#include "server/openai/logprob_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "server/openai/answer.h"

namespace nanovllm::server {
namespace {

constexpr size_t kContext = 4;  // tokens that may share a character with the next
constexpr std::string_view kReplacement = "\uFFFD";

void append(std::string& list, std::string_view json) {
  if (!list.empty()) list += ',';
  list += json;
}

// As vLLM bounds it, for JSON has no infinity.
std::string number(float logprob) {
  return Json(std::max(-9999.0, static_cast<double>(logprob))).dump();
}

size_t num_characters(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string bytes_of(std::string_view text) {
  std::string list;
  for (const char c : text) append(list, std::to_string(static_cast<unsigned char>(c)));
  return '[' + list + ']';
}

}  // namespace

void PackedLogprobs::append(const PositionLogprobs& position) {
  for (const TokenLogprob& token : position) {
    if (num_entries_++ % kBlock == 0) blocks_.emplace_back().reserve(kBlock);
    blocks_.back().push_back({token.token_id, token.logprob, token.rank});
  }
  ends_.push_back(num_entries_);
}

void PackedLogprobs::clear() {
  blocks_.clear();
  num_entries_ = 0;
  ends_.clear();
}

std::optional<PositionLogprobs> PackedLogprobs::at(size_t position, const Tokenizer* tokenizer,
                                                   size_t most) const {
  PositionLogprobs result;
  const size_t begin = position == 0 ? 0 : ends_[position - 1];
  const size_t count = std::min(ends_[position] - begin, most);
  for (size_t i = begin; i < begin + count; ++i) {
    const Entry& entry = blocks_[i / kBlock][i % kBlock];
    TokenLogprob& token = result.emplace_back();
    token = {entry.token_id, entry.logprob, entry.rank, {}};
    if (tokenizer != nullptr) {
      token.decoded_token = tokenizer->decode(std::span(&entry.token_id, 1), false);
    }
  }
  return result.empty() ? std::nullopt : std::optional(std::move(result));
}

std::string CompletionLogprobs::json() const {
  return fmt::format(
      R"({{"text_offset":[{}],"token_logprobs":[{}],"tokens":[{}],"top_logprobs":[{}]}})",
      text_offset, token_logprobs, tokens, top_logprobs);
}

void LogprobText::append_completion(int32_t token_id, const PositionLogprobs* position, int num_top,
                                    CompletionLogprobs& out,
                                    std::string CompletionLogprobs::*only) {
  const auto wants = [&](auto list) { return only == nullptr || only == list; };
  TokenLogprob chosen;
  chosen.token_id = token_id;
  if (position != nullptr) {
    chosen = position->front();
  } else if (tokenizer_ != nullptr) {
    chosen.decoded_token = tokenizer_->decode(std::span(&token_id, 1), false);
  }
  const std::string name = name_of(chosen);
  if (wants(&CompletionLogprobs::tokens)) append(out.tokens, json_text(name));
  if (wants(&CompletionLogprobs::token_logprobs)) {
    append(out.token_logprobs, position == nullptr ? "null" : number(chosen.logprob));
  }
  if (wants(&CompletionLogprobs::text_offset)) append(out.text_offset, std::to_string(offset_));
  offset_ += num_characters(name);
  if (position == nullptr && wants(&CompletionLogprobs::top_logprobs)) {
    append(out.top_logprobs, "null");
  } else if (wants(&CompletionLogprobs::top_logprobs)) {
    Json top = Json::object();  // of tokens that have the same text, the last counts
    const size_t count = num_top < 0 ? position->size() : static_cast<size_t>(num_top) + 1;
    for (size_t i = 0; i < std::min(count, position->size()); ++i) {
      const TokenLogprob& token = (*position)[i];
      top[name_of(token)] = std::max(-9999.0, static_cast<double>(token.logprob));
    }
    append(out.top_logprobs, top.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  advance(token_id);
}

void LogprobText::append_chat(const PositionLogprobs& position, int num_top, std::string& out) {
  const TokenLogprob& chosen = position.front();
  std::string top;
  const size_t count = num_top < 0 ? position.size() : static_cast<size_t>(num_top);
  for (size_t i = 0; i < std::min(count, position.size()); ++i) {
    const std::string name = name_of(position[i]);
    append(top, fmt::format(R"({{"token":{},"logprob":{},"bytes":{}}})", json_text(name),
                            number(position[i].logprob), bytes_of(name)));
  }
  out += fmt::format(R"({{"token":{},"logprob":{},"bytes":{},"top_logprobs":[{}]}})",
                     json_text(name_of(chosen)), number(chosen.logprob), bytes_of(text_of(chosen)),
                     top);
  advance(chosen.token_id);
}

std::string LogprobText::name_of(const TokenLogprob& token) const {
  const bool has_text = token.decoded_token.has_value();
  if (as_token_ids_ || !has_text) return fmt::format("token_id:{}", token.token_id);
  return text_of(token);
}

std::string LogprobText::text_of(const TokenLogprob& token) const {
  std::string text = token.decoded_token.value_or("");
  if (tokenizer_ == nullptr || !text.ends_with(kReplacement)) return text;
  return completed(token.token_id);
}

// What the token adds to the text of the tokens before it; nothing where that is no whole character
// still.
std::string LogprobText::completed(int32_t token_id) const {
  for (size_t count = 1; count <= context_.size(); ++count) {
    std::vector<int32_t> ids(context_.end() - static_cast<ptrdiff_t>(count), context_.end());
    ids.push_back(token_id);
    const std::string text = tokenizer_->decode(ids, false);
    if (text.ends_with(kReplacement)) continue;
    // Tokens right before it that are no character alone have had no text either.
    size_t num_clean = count;
    while (num_clean > 0) {
      const std::string alone = tokenizer_->decode(std::span(&ids[num_clean - 1], 1), false);
      if (!alone.ends_with(kReplacement)) break;
      --num_clean;
    }
    const std::string clean = tokenizer_->decode(std::span(ids.data(), num_clean), false);
    return text.starts_with(clean) ? text.substr(clean.size()) : text;
  }
  return {};
}

void LogprobText::advance(int32_t token_id) {
  if (context_.size() == kContext) context_.erase(context_.begin());
  context_.push_back(token_id);
}

}  // namespace nanovllm::server
