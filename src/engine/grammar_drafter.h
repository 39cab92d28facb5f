// Drafts of text that a grammar leaves no choice of.
#pragma once

#include "engine/drafter.h"
#include "nanovllm/tokenizer.h"

namespace nanovllm {

// The text that must follow, in the tokens that the tokenizer makes of it. A model may write it in
// others, as the masks let it, so that these are guesses too.
class GrammarDrafter final : public Drafter {
 public:
  // `tokenizer` must outlive it.
  explicit GrammarDrafter(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void propose(std::span<DraftRequest> requests) override;
  void ended(const Sequence& /*sequence*/) noexcept override {}

 private:
  std::vector<int32_t> tokens_of(const std::string& text, const Sequence& sequence) const;

  const Tokenizer& tokenizer_;
};

}  // namespace nanovllm
