// Ids of words seen before: a direct-mapped table of one cache line a word, so it is bounded and a
// collision costs no more than encoding the word again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "text/hash.h"

namespace nanovllm::text {

class WordCache {
 public:
  static constexpr size_t kMaxWord = 30;  // bytes
  static constexpr size_t kMaxIds = 8;
  static constexpr size_t kEntries = 1 << 15;  // 2 MiB

  WordCache() : entries_(kEntries) {}

  // Appends the word's ids when they are known; the word is not empty.
  bool append(std::string_view word, std::vector<int32_t>& out) const {
    if (word.size() > kMaxWord) return false;
    const Entry& entry = entries_[hash_bytes(word) % kEntries];
    if (entry.length != word.size() || std::memcmp(entry.word, word.data(), word.size()) != 0) {
      return false;
    }
    if (entry.count == 1) {
      out.push_back(entry.ids[0]);
    } else {
      out.insert(out.end(), entry.ids, entry.ids + entry.count);
    }
    return true;
  }

  void store(std::string_view word, std::span<const int32_t> ids) {
    if (word.size() > kMaxWord || ids.size() > kMaxIds) return;
    Entry& entry = entries_[hash_bytes(word) % kEntries];
    entry.length = static_cast<uint8_t>(word.size());
    entry.count = static_cast<uint8_t>(ids.size());
    std::memcpy(entry.word, word.data(), word.size());
    std::copy(ids.begin(), ids.end(), entry.ids);  // ids may be empty, and memcpy takes no null
  }

 private:
  struct alignas(64) Entry {
    int32_t ids[kMaxIds];
    char word[kMaxWord];
    uint8_t length = 0;  // 0: empty
    uint8_t count = 0;
  };
  static_assert(sizeof(Entry) == 64);
  std::vector<Entry> entries_;
};

}  // namespace nanovllm::text
