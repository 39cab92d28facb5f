#include "engine/suffix_drafter.h"

#include <algorithm>
#include <new>

namespace nanovllm {

namespace {

// Of ended sequences, whatever their number: 80 MB with the index.
constexpr int64_t kMostKeptTokens = int64_t{1} << 22;

// What follows `end` in the text, which may go on with itself.
std::vector<int32_t> continuation(std::span<const int32_t> text, int end, int most) {
  std::vector<int32_t> ids;
  for (int i = end; std::ssize(ids) < most; ++i) {
    const int32_t id = i < std::ssize(text) ? text[i] : ids[i - text.size()];
    if (id == SuffixIndex::kBreak) break;
    ids.push_back(id);
  }
  return ids;
}

}  // namespace

void SuffixDrafter::propose(std::span<DraftRequest> requests) {
  for (DraftRequest& request : requests) {
    request.draft = draft_for(*request.sequence, request.most);
  }
}

DraftTokens SuffixDrafter::draft_for(const Sequence& sequence, int most) {
  const std::span<const int32_t> text = sequence.token_ids;
  Own& own = own_.try_emplace(&sequence, Own{SuffixIndex(options_.max_length)}).first->second;
  while (own.num_indexed + 1 < std::ssize(text)) {
    own.index.insert(text, own.num_indexed + 1);
    ++own.num_indexed;
  }
  SuffixIndex::Match match = own.index.longest(text, text);
  std::span<const int32_t> source = text;
  if (const auto others = texts_.find(sequence.salt); others != texts_.end()) {
    const auto match_there = others->second.index.longest(others->second.ids, text);
    if (match_there.length > match.length) {
      match = match_there;
      source = others->second.ids;
    }
  }
  if (match.length < options_.min_length) return {};
  const double share = options_.most_per_match * match.length;
  if (share < most) most = std::max(1, static_cast<int>(share));
  return {continuation(source, match.end, most), match.length};
}

void SuffixDrafter::ended(const Sequence& sequence) noexcept {
  own_.erase(&sequence);
  try {
    keep(sequence.output(), sequence.salt);
  } catch (const std::bad_alloc&) {
    // It is not searched.
  }
}

void SuffixDrafter::keep(std::span<const int32_t> output, uint64_t salt) {
  const auto length = static_cast<int>(output.size());
  if (options_.max_texts == 0 || length < 2 || length > kMostKeptTokens) return;
  while (std::ssize(kept_) >= options_.max_texts || num_kept_tokens_ + length > kMostKeptTokens) {
    forget_oldest();
  }
  Texts& texts =
      texts_.try_emplace(salt, Texts{.index = SuffixIndex(options_.max_length)}).first->second;
  const size_t begin = texts.ids.size(), end_of_all = begin + length + 1;
  if (texts.ids.capacity() < end_of_all) texts.ids.reserve(std::max(end_of_all, 2 * begin));
  kept_.push_back({salt, length});  // nothing before it has changed anything that counts
  texts.ids.insert(texts.ids.end(), output.begin(), output.end());
  texts.ids.push_back(SuffixIndex::kBreak);
  num_kept_tokens_ += length;
  const auto first = static_cast<int>(begin);
  for (int end = first + 1; end < first + length; ++end) texts.index.insert(texts.ids, end);
}

void SuffixDrafter::forget_oldest() {
  const auto [salt, length] = kept_.front();
  kept_.pop_front();
  num_kept_tokens_ -= length;
  Texts& texts = texts_.at(salt);
  for (int end = texts.first + 1; end < texts.first + length; ++end) {
    texts.index.erase(texts.ids, end);
  }
  texts.first += length + 1;
  if (texts.first == std::ssize(texts.ids)) {
    texts_.erase(salt);
  } else if (2 * texts.first > std::ssize(texts.ids)) {
    texts.ids.erase(texts.ids.begin(), texts.ids.begin() + texts.first);
    texts.index.shift(texts.first);
    texts.first = 0;
  }
}

}  // namespace nanovllm
