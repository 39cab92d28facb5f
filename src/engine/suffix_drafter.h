// Drafts that are copied from earlier text.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/drafter.h"
#include "engine/suffix_index.h"

namespace nanovllm {

struct SuffixDrafterOptions {
  // Tokens at the end of a text that have to stand earlier, at least, and that are compared, at
  // most.
  int min_length = 1;
  int max_length = 24;
  // Outputs of ended sequences that are searched, the latest ones; 0 = none.
  int max_texts = 10'000;
  // Most tokens of a draft for each token that is found again.
  double most_per_match = 1;
};

// The longest end of a sequence's text that stands earlier in it, or else in an output of an ended
// sequence with the same salt: what followed there most recently is the draft. (Prompt lookup
// decoding, Saxena 2023; SuffixDecoding, arXiv 2411.04975, which counts continuations instead.) A
// copy that arrives at the end of the text goes on with what it has copied.
class SuffixDrafter final : public Drafter {
 public:
  explicit SuffixDrafter(const SuffixDrafterOptions& options) : options_(options) {}

  void propose(std::span<DraftRequest> requests) override;
  void ended(const Sequence& sequence) noexcept override;

  int num_texts() const { return static_cast<int>(kept_.size()); }

 private:
  struct Own {
    SuffixIndex index;
    int num_indexed = 0;  // the longest beginning that is there
  };
  // Outputs with one salt, each with a break behind it.
  struct Texts {
    std::vector<int32_t> ids = {};
    SuffixIndex index;
    int first = 0;  // where the oldest one begins
  };
  struct Kept {
    uint64_t salt;
    int length;
  };

  DraftTokens draft_for(const Sequence& sequence, int most);
  void keep(std::span<const int32_t> output, uint64_t salt);
  void forget_oldest();

  const SuffixDrafterOptions options_;
  std::unordered_map<const Sequence*, Own> own_;
  std::unordered_map<uint64_t, Texts> texts_;  // by salt
  std::deque<Kept> kept_;                      // oldest first
  int64_t num_kept_tokens_ = 0;
};

}  // namespace nanovllm
