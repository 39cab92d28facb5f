#include "server/agents/block_logprobs.h"

#include <algorithm>

namespace nanovllm::server {

BlockLogprobs::BlockLogprobs(const ServedModel& model, const AddRequest& request)
    : model_(&model), writer_(new_writer()) {
  const SamplingParams& params = request.params;
  const Tokenizer* tokenizer = model.preparer.tokenizer;
  if (!params.logprobs || tokenizer == nullptr) return;
  num_top_ = *params.logprobs;
  tags_ = params.marked_token_ids;
  detokenizer_.emplace(*tokenizer, params.skip_special_tokens, request.prompt_token_ids);
}

void BlockLogprobs::take(const RequestDelta& delta) {
  if (!detokenizer_) return;
  for (const PositionLogprobs& position : delta.logprobs) {
    const int32_t id = position.front().token_id;
    const bool is_tag = std::ranges::find(tags_, id) != tags_.end();
    const size_t begin = num_bytes_;
    num_bytes_ += detokenizer_->append(id, is_tag).size();
    const bool is_hidden = begin == num_bytes_ && model_->preparer.tokenizer->is_special(id);
    if (!is_hidden) tokens_.push_back({begin, num_bytes_, position});
  }
}

void BlockLogprobs::take_words(const AnswerBlock& block, size_t begin, size_t end) {
  const bool is_text = block.kind == AnswerBlock::Kind::kText;
  while (!tokens_.empty()) {
    const Token& token = tokens_.front();
    const size_t token_end = std::max(token.end, token.begin + 1);
    if (token.begin >= end || (!is_text && token_end > end)) break;
    if (is_text && token_end > begin) by_block_[block.index].append(token.logprobs);
    tokens_.pop_front();
  }
}

std::string BlockLogprobs::all(const AnswerBlock& block) const {
  LogprobText writer = new_writer();
  return list(block, 0, writer);
}

std::string BlockLogprobs::news(const AnswerBlock& block) {
  if (std::exchange(told_block_, block.index) != block.index) {
    num_told_ = 0;
    writer_ = new_writer();
  }
  std::string text = list(block, num_told_, writer_);
  const auto found = by_block_.find(block.index);
  num_told_ = found == by_block_.end() ? 0 : found->second.size();
  return text;
}

LogprobText BlockLogprobs::new_writer() const {
  return {model_->preparer.tokenizer, model_->return_tokens_as_token_ids};
}

// Of entries from one on, those before which the writer has written.
std::string BlockLogprobs::list(const AnswerBlock& block, size_t from, LogprobText& writer) const {
  std::string text = "[";
  const auto found = by_block_.find(block.index);
  const size_t count = found == by_block_.end() ? 0 : found->second.size();
  for (size_t i = from; i < count; ++i) {
    if (i > from) text += ',';
    writer.append_chat(*found->second.at(i, model_->preparer.tokenizer), num_top_, text);
  }
  return text + ']';
}

}  // namespace nanovllm::server
