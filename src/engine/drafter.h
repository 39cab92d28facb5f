// Who guesses the tokens that follow, to be verified several in one step (speculative decoding).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sequence.h"

namespace nanovllm {

// Tokens that may follow a sequence's own.
struct DraftTokens {
  std::vector<int32_t> ids;
  // How many tokens speak for the first one; each is one more for the next.
  int evidence = 0;
  // Which of an engine's drafters proposed them; filled in by Drafting.
  int drafter = 0;
};

struct DraftRequest {
  const Sequence* sequence = nullptr;
  // Tokens that the step computes of it, without drafts.
  int num_new_tokens = 0;
  // Tokens of a draft. Where it is at least 1, the step computes all that is known of the sequence,
  // and no ids are pending.
  int most = 0;
  // What its next token is drawn with, without penalties, biases and rules; not the position.
  SamplingRow row = {};
  DraftTokens draft = {};
};

// What a guess is worth is found out by drawing as if there was none: no token depends on it. Not
// thread-safe.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // Whether it is a model. Then it is also given the sequences of a step that get no drafts (most
  // is 0), and there is room in the KV cache for its guesses while it makes them.
  virtual bool computes() const { return false; }
  // Fills in the drafts of the sequences of a step; empty = no guess.
  virtual void propose(std::span<DraftRequest> requests) = 0;
  // To be called once for each sequence, when it gets no more tokens.
  virtual void ended(const Sequence& sequence) noexcept = 0;
};

}  // namespace nanovllm
