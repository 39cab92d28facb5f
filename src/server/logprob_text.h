// Log-probabilities in the shapes of both APIs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/outputs.h"
#include "nanovllm/tokenizer.h"

namespace nanovllm::server {

// Lists of the completions API, without their brackets; one entry a token.
struct CompletionLogprobs {
  std::string text_offset, token_logprobs, tokens, top_logprobs;
  std::string json() const;
};

// Of the tokens of one choice, in order. A token that is no whole character alone has no text until
// one completes it, and that one has the character's.
class LogprobText {
 public:
  LogprobText(const Tokenizer* tokenizer, bool as_token_ids)
      : tokenizer_(tokenizer), as_token_ids_(as_token_ids) {}

  // `position` is null for the prompt's first token, whose id is `token_id`. num_top -1 = all.
  void append_completion(int32_t token_id, const PositionLogprobs* position, int num_top,
                         CompletionLogprobs& out);
  // Appends an entry of "content".
  void append_chat(const PositionLogprobs& position, int num_top, std::string& out);

 private:
  std::string text_of(const TokenLogprob& token) const;
  std::string name_of(const TokenLogprob& token) const;
  std::string completed(int32_t token_id) const;
  void advance(int32_t token_id);

  const Tokenizer* tokenizer_;
  bool as_token_ids_;
  std::vector<int32_t> context_;  // the last tokens
  size_t offset_ = 0;             // of the next one, in characters
};

}  // namespace nanovllm::server
