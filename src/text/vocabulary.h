// Token spellings and ids: one arena of bytes and one open-addressing table, no string objects.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm::text {

// Ids above this are refused: no model has them, and a table by id must stay small.
inline constexpr uint32_t kMaxTokenId = (1u << 24) - 1;

class Vocabulary {
 public:
  void reserve(size_t tokens, size_t bytes);
  // The last id given to a spelling stays. id <= kMaxTokenId.
  void add(std::string_view token, int32_t id);

  int32_t find(std::string_view token) const;      // -1: not there
  bool has_id(int32_t id) const;                   // false for negative ids too
  std::string_view spelling(int32_t id) const;     // has_id(id)
  size_t size() const { return entries_.size(); }  // distinct spellings
  int32_t id_end() const { return static_cast<int32_t>(by_id_.size()); }  // largest id + 1

 private:
  struct Entry {
    uint32_t offset;  // into arena_
    uint32_t length;  // bytes
    int32_t id;
  };
  struct Slot {
    uint32_t hash;
    uint32_t entry;  // index + 1, 0: empty
  };
  Slot* find_slot(std::string_view token, uint32_t hash);
  void grow(size_t slots);

  std::string arena_;
  std::vector<Entry> entries_;
  std::vector<Slot> slots_;      // a power of two, at most half full
  std::vector<uint32_t> by_id_;  // entry + 1, 0: none
};

}  // namespace nanovllm::text
