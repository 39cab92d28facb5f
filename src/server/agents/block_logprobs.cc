#include "server/agents/block_logprobs.h"

#include <algorithm>

namespace nanovllm::server {

void BlockLogprobs::take(const RequestDelta& delta, const std::vector<AnswerBlock>& blocks) {
  for (const PositionLogprobs& position : delta.logprobs) {
    if (!is_tag(position.front().token_id)) held_.push_back(position);
  }
  const std::pair<size_t, size_t> shown = {blocks.size(),
                                           blocks.empty() ? 0 : blocks.back().text.size()};
  if (shown == std::exchange(shown_, shown)) return;
  if (blocks.back().kind == AnswerBlock::Kind::kText) {
    for (const PositionLogprobs& position : held_) by_block_[blocks.back().index].append(position);
  }
  held_.clear();
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

bool BlockLogprobs::is_tag(int32_t token_id) const {
  return std::ranges::any_of(model_->tags.ids,
                             [&](const auto& tag) { return tag.second == token_id; });
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
