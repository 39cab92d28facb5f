#include <algorithm>
#include <utility>

#include "text/detokenizer.h"

namespace nanovllm {

StopStringMatcher::StopStringMatcher(std::vector<std::string> stops, bool include_stop_in_output)
    : stops_(std::move(stops)), include_(include_stop_in_output) {
  for (const std::string& stop : stops_) {
    // Knuth, Morris and Pratt: where to go on when the byte after a matched prefix differs.
    std::vector<size_t> border(stop.size() + 1, 0);
    for (size_t i = 1, length = 0; i < stop.size(); ++i) {
      while (length > 0 && stop[i] != stop[length]) length = border[length];
      length += stop[i] == stop[length];
      border[i + 1] = length;
    }
    borders_.push_back(std::move(border));
  }
  matched_.assign(stops_.size(), 0);
}

StopStringMatcher::Result StopStringMatcher::append(std::string_view piece, bool may_match) {
  if (done_) return {};
  for (size_t at = 0; at < piece.size(); ++at) {
    int found = -1;
    for (size_t i = 0; i < stops_.size(); ++i) {
      const std::string& stop = stops_[i];
      size_t& length = matched_[i];
      if (stop.empty()) continue;
      while (length > 0 && piece[at] != stop[length]) length = borders_[i][length];
      length += piece[at] == stop[length];
      if (length < stop.size()) continue;
      length = borders_[i][length];  // for what follows if this one is passed over
      const bool longer = found < 0 || stop.size() > stops_[static_cast<size_t>(found)].size();
      if (may_match && longer) found = static_cast<int>(i);
    }
    if (found < 0) continue;
    done_ = true;
    held_.append(piece.substr(0, at + 1));
    if (!include_) held_.resize(held_.size() - stops_[static_cast<size_t>(found)].size());
    return {take_held(0), found};
  }
  held_.append(piece);
  return {take_held(matched_.empty() ? 0 : *std::max_element(matched_.begin(), matched_.end()))};
}

std::string StopStringMatcher::take_held(size_t keep) {
  const size_t end = held_.size() - keep;
  std::string text = held_.substr(shown_, end - shown_);
  shown_ = end;
  // Moving what is kept to the front only now and then keeps the cost linear.
  if (shown_ >= keep) {
    held_.erase(0, shown_);
    shown_ = 0;
  }
  return text;
}

std::string StopStringMatcher::finish() {
  done_ = true;
  return take_held(0);
}

}  // namespace nanovllm
