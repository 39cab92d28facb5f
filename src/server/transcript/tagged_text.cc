#include "server/transcript/tagged_text.h"

#include <utility>

namespace nanovllm::server {

void TaggedText::announce(std::span<const TokenMark> marks) {
  for (const TokenMark& mark : marks) {
    marks_.push_back({begin_ + text_.size() + mark.offset, mark.token_id});
  }
}

std::string_view TaggedText::take(size_t size) {
  const std::string_view taken = rest().substr(0, size);
  taken_ += taken.size();
  while (marked_ < marks_.size() && marks_[marked_].offset < begin_ + taken_) ++marked_;
  return taken;
}

void TaggedText::forget() {
  begin_ += taken_;
  text_.erase(0, std::exchange(taken_, 0));
  marks_.erase(marks_.begin(), marks_.begin() + static_cast<ptrdiff_t>(std::exchange(marked_, 0)));
}

TaggedText::Found TaggedText::find(std::initializer_list<Tag> tags) const {
  Found found = {rest()};
  // By the first mark of one of these tags, whose text may have been cut.
  for (size_t i = marked_; i < marks_.size() && found.before.size() == rest().size(); ++i) {
    const size_t at = marks_[i].offset - begin_ - taken_;
    if (at >= rest().size()) break;
    const std::string_view here = rest().substr(at);
    for (size_t tag = 0; tag < tags.size(); ++tag) {
      const auto& [text, token_id] = tags.begin()[tag];
      if (text.empty() || token_id != marks_[i].token_id) continue;
      if (here.starts_with(text)) found = {rest().substr(0, at), static_cast<int>(tag)};
      if (here.size() < text.size() && text.starts_with(here)) found = {rest().substr(0, at)};
    }
  }
  // By its characters.
  for (size_t at = 0; at < found.before.size(); ++at) {
    const std::string_view here = found.before.substr(at);
    for (size_t tag = 0; tag < tags.size(); ++tag) {
      const auto& [text, token_id] = tags.begin()[tag];
      if (text.empty() || token_id || here.front() != text.front()) continue;
      const bool may_go_on = found.tag < 0 && text.starts_with(here);
      if (here.starts_with(text)) return {found.before.substr(0, at), static_cast<int>(tag)};
      if (may_go_on) return {found.before.substr(0, at)};
    }
  }
  return found;
}

}  // namespace nanovllm::server
