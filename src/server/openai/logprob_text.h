// Log-probabilities in the shapes of both APIs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/outputs.h"
#include "nanovllm/tokenizer.h"

namespace nanovllm::server {

// Log-probabilities of positions in a row, 12 bytes a candidate, as they wait to be sent. Texts are
// left out: the tokenizer has them.
class PackedLogprobs {
 public:
  void append(const PositionLogprobs& position);
  void append_none() { ends_.push_back(num_entries_); }  // of a prompt's first token
  size_t size() const { return ends_.size(); }           // positions
  bool empty() const { return ends_.empty(); }
  void clear();
  // The first `most` candidates. `tokenizer` may be null. None for what append_none() added.
  std::optional<PositionLogprobs> at(size_t position, const Tokenizer* tokenizer,
                                     size_t most = SIZE_MAX) const;

 private:
  struct Entry {
    int32_t token_id;
    float logprob;
    int32_t rank;
  };
  static constexpr size_t kBlock = 336;  // entries, 4 KB

  // Of kBlock entries each, but for the last one: as a vector that grows, they would take twice as
  // much in between.
  std::vector<std::vector<Entry>> blocks_;
  size_t num_entries_ = 0;
  std::vector<size_t> ends_;  // of each position's entries
};

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
  // Where `only` is given, the other lists are left as they are.
  void append_completion(int32_t token_id, const PositionLogprobs* position, int num_top,
                         CompletionLogprobs& out, std::string CompletionLogprobs::*only = nullptr);
  // Appends an entry of "content"; the comma before it is the caller's.
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
