#include "text/bpe.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/check.h"
#include "io/json.h"
#include "text/byte_alphabet.h"
#include "text/utf8.h"

namespace nanovllm::text {

namespace {

// Up to here rescanning all pairs after each merge beats a heap.
constexpr size_t kShortWord = 40;  // symbols

}  // namespace

Bpe::Bpe(Vocabulary vocabulary, std::span<const PairTable::Rule> rules, BpeOptions options)
    : Model(std::move(vocabulary), options.byte_fallback),
      merges_(rules),
      options_(std::move(options)) {
  set_bytes();
  cuts_at_separator_ = separators_are_ends(rules);
}

Bpe::Bpe(Vocabulary vocabulary, std::vector<uint32_t> ranks, BpeOptions options)
    : Model(std::move(vocabulary), options.byte_fallback),
      ranks_(std::move(ranks)),
      options_(std::move(options)) {
  set_bytes();
  // No token is made that has a separator behind another character.
  cuts_at_separator_ = separators_are_ends({});
  for (int32_t id = 0; id < vocabulary_.id_end() && cuts_at_separator_; ++id) {
    if (!vocabulary_.has_id(id) || ranks_[id] == kNoRank) continue;
    cuts_at_separator_ = !has_separator_inside(vocabulary_.spelling(id));
  }
}

void Bpe::set_bytes() {
  has_affixes_ =
      !options_.continuing_subword_prefix.empty() || !options_.end_of_word_suffix.empty();
  plain_bytes_ = !has_affixes_;
  for (int b = 0; b < 256; ++b) {
    std::string spelling;
    append_utf8(spelling, kByteToChar[b]);
    byte_ids_[b] = vocabulary_.find(spelling);
    plain_bytes_ = plain_bytes_ && byte_ids_[b] >= 0;
  }
}

bool Bpe::separators_are_ends(std::span<const PairTable::Rule> rules) const {
  if (vocabulary_.find(kSeparator) < 0 || options_.ignore_merges || has_affixes_) return false;
  // Tokens that stand for other text than their spelling must not take part in merges.
  const int32_t unknown = options_.unk_token ? vocabulary_.find(*options_.unk_token) : -1;
  const auto stands_for_itself = [&](int32_t id) {
    return id != unknown && (!options_.byte_fallback || byte_of(vocabulary_.spelling(id)) < 0);
  };
  return std::all_of(rules.begin(), rules.end(), [&](const PairTable::Rule& rule) {
    return stands_for_itself(rule.left) && stands_for_itself(rule.right) &&
           (vocabulary_.spelling(rule.left).ends_with(kSeparator) ||
            !vocabulary_.spelling(rule.right).starts_with(kSeparator));
  });
}

PairTable::Merge Bpe::pair(int32_t left, int32_t right, std::string& spelling) const {
  if (!ranks_.empty()) {
    if (ranks_[left] == kNoRank || ranks_[right] == kNoRank) return {kNoRank, -1};
    spelling.assign(vocabulary_.spelling(left)).append(vocabulary_.spelling(right));
    const int32_t joined = vocabulary_.find(spelling);
    return {joined < 0 ? kNoRank : ranks_[joined], joined};
  }
  const PairTable::Merge* merge = merges_.find(left, right);
  return merge ? *merge : PairTable::Merge{kNoRank, -1};
}

int32_t Bpe::unknown_id() const {
  const int32_t id = vocabulary_.find(*options_.unk_token);
  if (id < 0) {
    throw_error(ErrorCode::kCorruptData,
                "the text has a character that the tokenizer's vocabulary lacks, and so does its "
                "unk_token '{}'",
                printable(*options_.unk_token));
  }
  return id;
}

void Bpe::split_characters(std::string_view word, std::vector<int32_t>& ids) const {
  std::string buffer;
  int32_t unknown = -1;  // an unknown token that is not written yet, so that more can join it
  for (size_t i = 0; i < word.size();) {
    const size_t length = utf8_length(word[i]);
    std::string_view character = word.substr(i, length);
    if (has_affixes_) {
      buffer.assign(i == 0 ? "" : options_.continuing_subword_prefix).append(character);
      if (i + length == word.size()) buffer.append(options_.end_of_word_suffix);
      character = buffer;
    }
    const int32_t id = vocabulary_.find(character);
    if (id >= 0) {
      if (unknown >= 0) ids.push_back(std::exchange(unknown, -1));
      ids.push_back(id);
    } else if (!append_bytes(character, ids) && options_.unk_token) {
      if (unknown >= 0 && !options_.fuse_unk) ids.push_back(unknown);
      unknown = unknown_id();
    }
    i += length;
  }
  if (unknown >= 0) ids.push_back(unknown);
}

void Bpe::merge_short(ModelScratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids;
  std::vector<PairTable::Merge>& pairs = scratch.pairs;
  pairs.clear();
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    pairs.push_back(pair(ids[i], ids[i + 1], scratch.spelling));
  }
  while (!pairs.empty()) {
    size_t best = 0;
    for (size_t i = 1; i < pairs.size(); ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNoRank) return;
    ids[best] = pairs[best].id;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best) + 1);
    pairs.erase(pairs.begin() + static_cast<ptrdiff_t>(best));
    if (best > 0) pairs[best - 1] = pair(ids[best - 1], ids[best], scratch.spelling);
    if (best < pairs.size()) pairs[best] = pair(ids[best], ids[best + 1], scratch.spelling);
  }
}

// The same in O(n log n): a linked list of symbols and a heap of pairs, leftmost first among
// equals. A heap entry is stale when the pair at its position has another rank by now.
void Bpe::merge_long(ModelScratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids;
  std::vector<PairTable::Merge>& pairs = scratch.pairs;
  std::vector<uint32_t>&previous = scratch.previous, &next = scratch.next;
  std::vector<uint64_t>& queue = scratch.queue;
  const auto size = static_cast<uint32_t>(ids.size());
  pairs.assign(size, {kNoRank, -1});
  previous.resize(size);
  next.resize(size);
  queue.clear();
  for (uint32_t i = 0; i < size; ++i) {
    previous[i] = i - 1;
    next[i] = i + 1;
    if (i + 1 < size) pairs[i] = pair(ids[i], ids[i + 1], scratch.spelling);
    if (pairs[i].rank != kNoRank) queue.push_back(uint64_t{pairs[i].rank} << 32 | i);
  }
  std::make_heap(queue.begin(), queue.end(), std::greater<>());
  const auto update = [&](uint32_t left, uint32_t right) {
    pairs[left] = pair(ids[left], ids[right], scratch.spelling);
    if (pairs[left].rank == kNoRank) return;
    queue.push_back(uint64_t{pairs[left].rank} << 32 | left);
    std::push_heap(queue.begin(), queue.end(), std::greater<>());
  };
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    const uint64_t top = queue.back();
    queue.pop_back();
    const auto at = static_cast<uint32_t>(top);
    if (pairs[at].rank != top >> 32) continue;
    const uint32_t joined = next[at];
    ids[at] = pairs[at].id;
    ids[joined] = -1;
    pairs[joined].rank = kNoRank;
    next[at] = next[joined];
    if (next[at] < size) {
      previous[next[at]] = at;
      update(at, next[at]);
    } else {
      pairs[at].rank = kNoRank;
    }
    if (at > 0) update(previous[at], at);
  }
  ids.erase(std::remove(ids.begin(), ids.end(), -1), ids.end());
}

std::optional<size_t> Bpe::max_bytes_per_token(bool byte_level) const {
  if (has_affixes_) return std::nullopt;  // spellings are more than what they stand for, or less
  const size_t longest = longest_spelling(byte_level);
  if (has_all_bytes() || (byte_level && plain_bytes_)) return longest;
  // Characters that have no token are left out, or are one, with any number of their like or alone.
  if (!options_.unk_token || options_.fuse_unk) return std::nullopt;
  return longest * kMaxCharacter;  // one behind each character of a spelling
}

bool Bpe::encode(std::string_view word, bool byte_level, ModelScratch& scratch,
                 std::vector<int32_t>& out) const {
  std::vector<int32_t>& ids = scratch.ids;
  ids.clear();
  const bool by_table = byte_level && plain_bytes_;
  if (byte_level && (!by_table || options_.ignore_merges)) {
    scratch.spelling.clear();
    append_byte_spelling(scratch.spelling, word);
  }
  const std::string_view spelled = byte_level ? std::string_view(scratch.spelling) : word;
  if (options_.ignore_merges) {
    if (const int32_t id = vocabulary_.find(spelled); id >= 0) {
      out.push_back(id);
      return true;
    }
  }
  if (by_table) {
    for (const char byte : word) ids.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
  } else {
    split_characters(spelled, ids);
  }
  if (ids.size() > kShortWord) {
    merge_long(scratch);
  } else {
    merge_short(scratch);
  }
  out.insert(out.end(), ids.begin(), ids.end());
  return true;
}

}  // namespace nanovllm::text
