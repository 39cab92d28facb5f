#include "text/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "text/hash.h"

namespace nanovllm::text {

PairTable::PairTable(std::span<const Rule> rules)
    : slots_(std::bit_ceil(rules.size() * 4 / 3 + 2)),
      mask_(slots_.size() - 1),
      shift_(64 - std::countr_zero(slots_.size())) {
  for (size_t rank = 0; rank < rules.size(); ++rank) {
    if (rank + kPrefetchDistance < rules.size()) {
      const Rule& ahead = rules[rank + kPrefetchDistance];
      __builtin_prefetch(&slots_[slot_of(key_of(ahead.left, ahead.right))], 1);
    }
    const auto& [left, right, joined] = rules[rank];
    const uint64_t key = key_of(left, right);
    size_t i = slot_of(key);
    while (slots_[i].key != kEmpty && slots_[i].key != key) i = (i + 1) & mask_;
    slots_[i] = {key, {static_cast<uint32_t>(rank), joined}};
  }
}

Model::Model(Vocabulary vocabulary, bool byte_fallback) : vocabulary_(std::move(vocabulary)) {
  for (int b = 0; b < 256; ++b) {
    fallback_ids_[b] = byte_fallback ? vocabulary_.find(fmt::format("<0x{:02X}>", b)) : -1;
  }
}

bool has_separator_inside(std::string_view token) {
  while (token.starts_with(kSeparator)) token.remove_prefix(kSeparator.size());
  return token.find(kSeparator) != token.npos;
}

size_t Model::part_end(std::string_view word, size_t from) const {
  if (!cuts_at_separator_) return word.size();
  while (word.substr(from).starts_with(kSeparator)) from += kSeparator.size();
  return std::min(word.find(kSeparator, from), word.size());
}

bool Model::has_all_bytes() const {
  return std::ranges::all_of(fallback_ids_, [](int32_t id) { return id >= 0; });
}

size_t Model::longest_spelling(bool byte_level) const {
  const auto is_first = [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; };
  size_t longest = 1;
  for (int32_t id = 0; id < vocabulary_.id_end(); ++id) {
    if (!vocabulary_.has_id(id)) continue;
    const std::string_view spelling = vocabulary_.spelling(id);
    const auto size = byte_level ? static_cast<size_t>(std::ranges::count_if(spelling, is_first))
                                 : spelling.size();
    longest = std::max(longest, size);
  }
  return longest;
}

bool Model::append_bytes(std::string_view text, std::vector<int32_t>& ids) const {
  const size_t start = ids.size();
  for (const char byte : text) {
    ids.push_back(fallback_ids_[static_cast<uint8_t>(byte)]);
    if (ids.back() >= 0) continue;
    ids.resize(start);
    return false;
  }
  return true;
}

}  // namespace nanovllm::text
