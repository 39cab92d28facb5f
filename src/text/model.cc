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
