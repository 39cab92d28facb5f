// Token spellings and ids: one arena of bytes and one open-addressing table, no string objects.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm::text {

// Ids above this are refused: no model has them, and a table by id must stay small.
inline constexpr uint32_t kMaxTokenId = (1u << 24) - 1;

// Filled by add(), then finish() once; find() and spelling() work after that.
class Vocabulary {
 public:
  void reserve(size_t tokens, size_t bytes);
  // The last id given to a spelling stays. id <= kMaxTokenId.
  void add(std::string_view token, int32_t id);
  void finish();

  int32_t find(std::string_view token) const;  // -1: not there
  // The same, sooner where it has the id `guess`.
  int32_t find(std::string_view token, int32_t guess) const {
    return has_id(guess) && spelling(guess) == token ? guess : find(token);
  }
  bool has_id(int32_t id) const;                // false for negative ids too
  std::string_view spelling(int32_t id) const;  // has_id(id)
  size_t size() const { return size_; }         // distinct spellings
  int32_t id_end() const { return static_cast<int32_t>(by_id_.size()); }  // largest id + 1

 private:
  // A record of the arena is this, then the spelling; records are four-byte aligned.
  struct Header {
    uint32_t hash;
    int32_t id;
    uint32_t length;  // bytes
  };
  struct Slot {
    uint32_t hash;
    uint32_t record;  // offset of a record + 1, 0: empty
  };
  Header header_at(size_t record) const;
  std::string_view spelling_at(size_t record) const;

  std::string arena_;
  std::vector<uint32_t> records_;  // offsets, in the order of add(); empty after finish()
  std::vector<Slot> slots_;        // a power of two, at most three quarters full
  std::vector<uint32_t> by_id_;    // offset of a record + 1, 0: none
  size_t size_ = 0;
};

}  // namespace nanovllm::text
