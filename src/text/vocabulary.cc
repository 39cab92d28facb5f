#include "text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "text/hash.h"

namespace nanovllm::text {

namespace {

uint32_t hash_of(std::string_view token) { return static_cast<uint32_t>(hash_bytes(token)); }

}  // namespace

void Vocabulary::reserve(size_t tokens, size_t bytes) {
  arena_.reserve(bytes + tokens * (sizeof(Header) + 4));
  records_.reserve(tokens);
}

Vocabulary::Header Vocabulary::header_at(size_t record) const {
  Header header;
  std::memcpy(&header, arena_.data() + record, sizeof header);
  return header;
}

std::string_view Vocabulary::spelling_at(size_t record) const {
  return {arena_.data() + record + sizeof(Header), header_at(record).length};
}

void Vocabulary::add(std::string_view token, int32_t id) {
  NANOVLLM_CHECK(id >= 0 && static_cast<uint32_t>(id) <= kMaxTokenId);
  NANOVLLM_CHECK(arena_.size() + token.size() < UINT32_MAX - 16);
  const Header header{hash_of(token), id, static_cast<uint32_t>(token.size())};
  records_.push_back(static_cast<uint32_t>(arena_.size()));
  arena_.append(reinterpret_cast<const char*>(&header), sizeof header);
  arena_.append(token);
  arena_.append(-token.size() % 4, '\0');
}

void Vocabulary::finish() {
  slots_.assign(std::bit_ceil(records_.size() * 4 / 3 + 1), {0, 0});
  const size_t mask = slots_.size() - 1;
  for (size_t i = 0; i < records_.size(); ++i) {
    if (i + kPrefetchDistance < records_.size()) {
      __builtin_prefetch(&slots_[header_at(records_[i + kPrefetchDistance]).hash & mask], 1);
    }
    const uint32_t record = records_[i];
    const Header header = header_at(record);
    size_t at = header.hash & mask;
    while (slots_[at].record != 0 && (slots_[at].hash != header.hash ||
                                      spelling_at(slots_[at].record - 1) != spelling_at(record))) {
      at = (at + 1) & mask;
    }
    if (slots_[at].record == 0) {
      ++size_;
    } else {
      // The spelling again: its former id belongs to nothing, unless it was given away since.
      uint32_t& former = by_id_[header_at(slots_[at].record - 1).id];
      if (former == slots_[at].record) former = 0;
    }
    slots_[at] = {header.hash, record + 1};
    const auto id = static_cast<size_t>(header.id);
    if (id >= by_id_.size()) by_id_.resize(id + 1);
    by_id_[id] = record + 1;
  }
  records_ = {};
}

int32_t Vocabulary::find(std::string_view token) const {
  const uint32_t hash = hash_of(token);
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash & mask; slots_[i].record != 0; i = (i + 1) & mask) {
    if (slots_[i].hash == hash && spelling_at(slots_[i].record - 1) == token) {
      return header_at(slots_[i].record - 1).id;
    }
  }
  return -1;
}

bool Vocabulary::has_id(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < by_id_.size() && by_id_[id] != 0;
}

std::string_view Vocabulary::spelling(int32_t id) const { return spelling_at(by_id_[id] - 1); }

}  // namespace nanovllm::text
