// The unigram language model of SentencePiece: the cut of a word whose tokens have the best sum of
// scores (Kudo 2018, https://arxiv.org/abs/1804.10959).
#pragma once

#include "text/model.h"

namespace nanovllm::text {

// Immutable after construction.
class Unigram : public Model {
 public:
  // The vocabulary's ids are those of `scores`, which are logarithms of probabilities. `unknown`:
  // the id for characters that no token covers and that have no bytes either, -1: none.
  Unigram(Vocabulary vocabulary, std::vector<double> scores, int32_t unknown, bool byte_fallback);

  bool encode(std::string_view word, bool byte_level, ModelScratch& scratch,
              std::vector<int32_t>& out) const override;
  std::optional<size_t> max_bytes_per_token(bool byte_level) const override;

 private:
  bool find_paths(std::string_view word, double score, std::vector<Path>& paths) const;

  std::vector<double> scores_;  // by id
  double unknown_score_;        // of a character without a token of its own
  int32_t unknown_;
  // (node, byte) -> rank: the next node - 1, id: of the token that ends there, -1: none
  PairTable trie_;
};

}  // namespace nanovllm::text
