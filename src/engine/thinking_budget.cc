#include "engine/thinking_budget.h"

#include <algorithm>
#include <limits>

namespace nanovllm {

bool TagFinder::append(int32_t id) {
  // The longest beginning of the tag that what came ends with: tags are a few tokens long.
  const auto found = tag_.first(num_found_);
  for (size_t length = num_found_ + 1; length > 0; --length) {
    if (tag_[length - 1] != id ||
        !std::ranges::equal(tag_.first(length - 1), found.last(length - 1))) {
      continue;
    }
    num_found_ = length % tag_.size();
    return length == tag_.size();
  }
  num_found_ = 0;
  return false;
}

int num_open_thinking_tokens(std::span<const int32_t> prompt, const ThinkingTags& tags) {
  TagFinder start(tags.start_ids), end(tags.end_ids);
  int num_tokens = -1;
  for (const int32_t id : prompt) {
    if (num_tokens >= 0) ++num_tokens;
    if (start.append(id)) num_tokens = 0;
    if (end.append(id)) num_tokens = -1;
  }
  return num_tokens;
}

ThinkingBudget::ThinkingBudget(const ThinkingTags& tags, int budget)
    : budget_(budget),
      num_prompt_tokens_(tags.num_prompt_tokens),
      num_tokens_(tags.num_prompt_tokens),
      start_(tags.start_ids),
      end_(tags.end_ids) {}

void ThinkingBudget::append(int32_t id) {
  if (is_over_) return;
  // What ends something else, such as a message of another channel, ends no thought.
  const bool is_open = num_tokens_ >= 0;
  if (is_open) {
    ++num_tokens_;
    is_over_ = end_.append(id);
  }
  may_begin_ = may_begin_ && start_.num_found() == num_output_tokens_++;
  if (!start_.append(id)) return;
  if (!is_open) {
    num_tokens_ = 0;
  } else if (may_begin_) {
    num_tokens_ = num_prompt_tokens_;
  }
  may_begin_ = false;
}

int32_t ThinkingBudget::forced_id() const { return num_free() <= 0 ? end_.next_id() : -1; }

int64_t ThinkingBudget::num_free() const {
  if (is_over_) return std::numeric_limits<int64_t>::max();
  if (num_tokens_ >= 0) return int64_t{budget_} - num_tokens_;
  return static_cast<int64_t>(start_.num_missing()) + budget_;
}

}  // namespace nanovllm
