// Byte pair encoding of one word: start from characters, join the pair of the lowest rank until no
// pair is left; the leftmost one among equals.
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

// (left id, right id) -> rank and joined id; open addressing, 16 bytes a slot.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank;
    int32_t id;
  };
  struct Rule {
    int32_t left, right, joined;
  };
  MergeTable() : MergeTable(std::span<const Rule>()) {}
  // In the order of their ranks; of equal pairs the last one stays.
  explicit MergeTable(std::span<const Rule> rules);

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

struct BpeOptions {
  std::optional<std::string> unk_token = {};
  std::string continuing_subword_prefix = {};
  std::string end_of_word_suffix = {};
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
};

// Buffers a caller keeps between words.
struct BpeScratch {
  std::vector<int32_t> ids;
  std::vector<MergeTable::Merge> pairs;  // of ids[i] with the next one; rank kNoRank: does not join
  std::vector<uint32_t> previous, next;
  std::vector<uint64_t> queue;  // rank << 32 | position
  std::string spelling;
};

// Immutable after construction.
class Bpe {
 public:
  // `rules` are the merges in the order of their ranks.
  Bpe(Vocabulary vocabulary, std::span<const MergeTable::Rule> rules, BpeOptions options);
  // Without merges: two tokens join where the vocabulary has what they spell together. `ranks`, by
  // id: that token's rank, kNoRank for one that takes no part in this, as what is made or as a
  // half.
  Bpe(Vocabulary vocabulary, std::vector<uint32_t> ranks, BpeOptions options);

  // Appends the ids of a word that is not empty. `byte_level`: the word is plain text and the
  // vocabulary spells bytes. Throws Error(kCorruptData) when the unknown token is needed but is not
  // in the vocabulary.
  void encode(std::string_view word, bool byte_level, BpeScratch& scratch,
              std::vector<int32_t>& out) const;

  // The end of the part of `word` that starts at `from` and that no merge joins with what follows:
  // encoding the parts one by one gives what encoding the word gives.
  size_t part_end(std::string_view word, size_t from) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  void split_characters(std::string_view word, std::vector<int32_t>& ids) const;
  int32_t find_character(std::string_view character, bool first, bool last) const;
  void set_bytes();
  bool separators_are_ends(std::span<const MergeTable::Rule> rules) const;
  bool append_fallback(std::string_view character, bool first, bool last,
                       std::vector<int32_t>& ids) const;
  int32_t unknown_id() const;
  // `spelling`: a buffer.
  MergeTable::Merge pair(int32_t left, int32_t right, std::string& spelling) const;
  void merge_short(BpeScratch& scratch) const;
  void merge_long(BpeScratch& scratch) const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  std::vector<uint32_t> ranks_;  // by id; empty: merges_ tells what joins
  BpeOptions options_;
  // Set when the vocabulary has the SentencePiece separator and nothing joins another character
  // with one after it, so that words can be cut there.
  bool cuts_at_separator_ = false;
  bool plain_bytes_ = false;                 // byte_ids_ is complete and no prefix or suffix is set
  std::array<int32_t, 256> byte_ids_{};      // of the byte's spelling, -1: none
  std::array<int32_t, 256> fallback_ids_{};  // of <0x00> ... <0xFF>
};

}  // namespace nanovllm::text
