// What a tokenizer does with one word: bpe.h or unigram.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace nanovllm::text {

inline constexpr uint32_t kNoRank = UINT32_MAX;  // does not join

// (left id, right id) -> rank and joined id, or whatever else two numbers lead to, as the edges of
// a trie; open addressing, 16 bytes a slot.
class PairTable {
 public:
  struct Merge {
    uint32_t rank;
    int32_t id;
  };
  struct Rule {
    int32_t left, right, joined;
  };
  PairTable() : PairTable(std::span<const Rule>()) {}
  // In the order of their ranks; of equal pairs the last one stays.
  explicit PairTable(std::span<const Rule> rules);

  const Merge* find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (size_t i = slot_of(key);; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return &slots_[i].merge;
      if (slots_[i].key == kEmpty) return nullptr;
    }
  }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;  // ids are not negative
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge{};
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15u) >> shift_; }

  std::vector<Slot> slots_;  // at most three quarters full
  size_t mask_;
  int shift_;  // 64 - log2(slots)
};

inline constexpr std::string_view kSeparator = "\u2581";  // SentencePiece's for a space
// Whether the token has one behind another character.
bool has_separator_inside(std::string_view token);

// The best way found to cut a word up to some position.
struct Path {
  double score = 0;
  int32_t id = -1;      // of the last token
  uint32_t length = 0;  // ... in bytes; 0: none found
};

// Buffers a caller keeps between words.
struct ModelScratch {
  std::string spelling;
  std::vector<int32_t> ids;
  std::vector<PairTable::Merge> pairs;  // of ids[i] with the next one; rank kNoRank: does not join
  std::vector<uint32_t> previous, next;
  std::vector<uint64_t> queue;  // rank << 32 | position
  std::vector<Path> paths;      // by position
  double score = 0;             // of the word's parts so far: of the ids before ...
  size_t scored = 0;            // ... this one
};

// Immutable after construction.
class Model {
 public:
  virtual ~Model() = default;

  // Appends the ids of a word that is not empty, or of a part of one. `byte_level`: the word is
  // plain text and the vocabulary spells bytes. Returns whether the ids would be the same wherever
  // it stands. Throws Error(kCorruptData) when the unknown token is needed but is not in the
  // vocabulary.
  virtual bool encode(std::string_view word, bool byte_level, ModelScratch& scratch,
                      std::vector<int32_t>& out) const = 0;

  // The end of the part of `word` that starts at `from` and that no token joins with what follows:
  // encoding the parts one by one gives what encoding the word gives.
  size_t part_end(std::string_view word, size_t from) const;

  // Bytes of a word that become one token at most; none where there is no bound.
  virtual std::optional<size_t> max_bytes_per_token(bool byte_level) const = 0;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  Model(Vocabulary vocabulary, bool byte_fallback);
  // Appends the tokens <0x00> ... <0xFF> of the text's bytes; false: one is missing or they are not
  // to be used.
  bool append_bytes(std::string_view text, std::vector<int32_t>& ids) const;
  bool has_all_bytes() const;  // append_bytes() never fails
  // The longest spelling; `byte_level`: in bytes of what it spells.
  size_t longest_spelling(bool byte_level) const;

  Vocabulary vocabulary_;
  // Set when the vocabulary has the SentencePiece separator and nothing joins another character
  // with one after it, so that words can be cut there.
  bool cuts_at_separator_ = false;

 private:
  std::array<int32_t, 256> fallback_ids_;  // -1: none
};

}  // namespace nanovllm::text
