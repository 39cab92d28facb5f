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

#include "text/model.h"

namespace nanovllm::text {

struct BpeOptions {
  std::optional<std::string> unk_token = {};
  std::string continuing_subword_prefix = {};
  std::string end_of_word_suffix = {};
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
};

// Immutable after construction.
class Bpe : public Model {
 public:
  // `rules` are the merges in the order of their ranks.
  Bpe(Vocabulary vocabulary, std::span<const PairTable::Rule> rules, BpeOptions options);
  // Without merges: two tokens join where the vocabulary has what they spell together. `ranks`, by
  // id: that token's rank, kNoRank for one that takes no part in this, as what is made or as a
  // half.
  Bpe(Vocabulary vocabulary, std::vector<uint32_t> ranks, BpeOptions options);

  bool encode(std::string_view word, bool byte_level, ModelScratch& scratch,
              std::vector<int32_t>& out) const override;
  std::optional<size_t> max_bytes_per_token(bool byte_level) const override;

 private:
  void split_characters(std::string_view word, std::vector<int32_t>& ids) const;
  void set_bytes();
  bool separators_are_ends(std::span<const PairTable::Rule> rules) const;
  int32_t unknown_id() const;
  // `spelling`: a buffer.
  PairTable::Merge pair(int32_t left, int32_t right, std::string& spelling) const;
  void merge_short(ModelScratch& scratch) const;
  void merge_long(ModelScratch& scratch) const;

  PairTable merges_;
  std::vector<uint32_t> ranks_;  // by id; empty: merges_ tells what joins
  BpeOptions options_;
  bool has_affixes_ = false;             // a prefix or a suffix is set
  bool plain_bytes_ = false;             // byte_ids_ is complete and there are no affixes
  std::array<int32_t, 256> byte_ids_{};  // of the byte's spelling, -1: none
};

}  // namespace nanovllm::text
