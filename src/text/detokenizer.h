// Text of a growing list of ids, piece by piece.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace nanovllm {

// The pieces append() and finish() return, joined, equal Tokenizer::decode of all ids at once, for
// any split. Never returns half a character. Not thread-safe; the tokenizer outlives it. Costs O(1)
// a token, amortised.
class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens);
  ~Detokenizer();
  Detokenizer(Detokenizer&&) noexcept;
  std::string append(int32_t id);  // the text that became certain
  std::string finish();            // the rest, incomplete characters as U+FFFD

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Finds the first stop string in text that arrives in pieces, and holds back exactly what might
// still become one.
class StopStringMatcher {
 public:
  StopStringMatcher(std::vector<std::string> stops, bool include_stop_in_output);
  struct Result {
    std::string text;  // may be shown now
    int matched = -1;  // index of the stop string found; text after it is dropped
  };
  Result append(std::string_view piece);
  std::string finish();  // what was held back

 private:
  std::vector<std::string> stops_;
  bool include_;
  std::string held_;
};

}  // namespace nanovllm
