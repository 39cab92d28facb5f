#include "text/vocabulary.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "text/hash.h"

namespace nanovllm::text {

namespace {
uint32_t hash_of(std::string_view token) { return static_cast<uint32_t>(hash_bytes(token)); }
}  // namespace

void Vocabulary::reserve(size_t tokens, size_t bytes) {
  arena_.reserve(bytes);
  entries_.reserve(tokens);
  by_id_.reserve(tokens);
  if (slots_.size() < 2 * tokens) grow(std::bit_ceil(2 * tokens));
}

Vocabulary::Slot* Vocabulary::find_slot(std::string_view token, uint32_t hash) {
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    Slot& slot = slots_[i];
    if (slot.entry == 0) return &slot;
    if (slot.hash != hash) continue;
    const Entry& entry = entries_[slot.entry - 1];
    if (std::string_view(arena_.data() + entry.offset, entry.length) == token) return &slot;
  }
}

void Vocabulary::grow(size_t slots) {
  std::vector<Slot> old(std::max<size_t>(slots, 16));
  old.swap(slots_);
  const size_t mask = slots_.size() - 1;
  for (const Slot& slot : old) {
    if (slot.entry == 0) continue;
    size_t i = slot.hash & mask;
    while (slots_[i].entry != 0) i = (i + 1) & mask;
    slots_[i] = slot;
  }
}

void Vocabulary::add(std::string_view token, int32_t id) {
  NANOVLLM_CHECK(id >= 0 && static_cast<uint32_t>(id) <= kMaxTokenId);
  if (2 * (entries_.size() + 1) > slots_.size()) grow(2 * slots_.size());
  const uint32_t hash = hash_of(token);
  Slot* slot = find_slot(token, hash);
  if (slot->entry == 0) {
    entries_.push_back(
        {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(token.size()), id});
    arena_.append(token);
    *slot = {hash, static_cast<uint32_t>(entries_.size())};
  } else {
    Entry& entry = entries_[slot->entry - 1];
    if (by_id_[entry.id] == slot->entry) by_id_[entry.id] = 0;
    entry.id = id;
  }
  if (static_cast<size_t>(id) >= by_id_.size()) by_id_.resize(static_cast<size_t>(id) + 1);
  by_id_[id] = slot->entry;
}

int32_t Vocabulary::find(std::string_view token) const {
  if (slots_.empty()) return -1;
  const uint32_t hash = hash_of(token);
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    const Slot& slot = slots_[i];
    if (slot.entry == 0) return -1;
    if (slot.hash != hash) continue;
    const Entry& entry = entries_[slot.entry - 1];
    if (std::string_view(arena_.data() + entry.offset, entry.length) == token) return entry.id;
  }
}

bool Vocabulary::has_id(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < by_id_.size() && by_id_[id] != 0;
}

std::string_view Vocabulary::spelling(int32_t id) const {
  const Entry& entry = entries_[by_id_[id] - 1];
  return std::string_view(arena_.data() + entry.offset, entry.length);
}

}  // namespace nanovllm::text
