// Text of a growing list of ids, piece by piece.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/tokenizer.h"

namespace nanovllm {

// The pieces append() and finish() return, joined, equal Tokenizer::decode of all ids at once, for
// any split. Never returns half a character. Not thread-safe; the tokenizer outlives it. Costs O(1)
// a token, amortised.
//
// After a prompt they are what the ids add to its text: the first of them keeps the blank that
// decoders take from the first token of a text. A character that the prompt only begins is theirs.
class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens,
              std::span<const int32_t> prompt = {});
  ~Detokenizer();
  Detokenizer(Detokenizer&&) noexcept;
  // The text that became certain. `keep`: this one is no special token that is left out.
  std::string append(int32_t id, bool keep = false);
  std::string finish();  // the rest, incomplete characters as U+FFFD

  // The bytes that each id adds to a text behind others, [vocab_size()]: pieces of characters as
  // they are. Empty for ids that there are not.
  static std::vector<std::string> bytes_of_tokens(const Tokenizer& tokenizer);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Finds the stop string that ends first in text that arrives in pieces (the longest of those that
// end together), and holds back exactly what might still become one. What it finds does not depend
// on how the text is cut. Linear in the text; not thread-safe.
class StopStringMatcher {
 public:
  // Empty stop strings are never found.
  StopStringMatcher(std::vector<std::string> stops, bool include_stop_in_output);
  struct Result {
    std::string text;  // may be shown now
    int matched = -1;  // index of the stop string found; text after it is dropped
  };
  // Nothing after a match or finish(). With may_match = false, stop strings that end in the piece
  // are passed over; those that begin in it still count.
  Result append(std::string_view piece, bool may_match = true);
  std::string finish();  // what was held back

 private:
  std::string take_held(size_t keep);  // all but the last `keep` bytes

  std::vector<std::string> stops_;
  std::vector<std::vector<size_t>> borders_;  // [stop][prefix length]: longest border of the prefix
  std::vector<size_t> matched_;               // [stop]: bytes of it that end the text so far
  bool include_;
  bool done_ = false;
  std::string held_;  // from shown_ on: the longest such prefix
  size_t shown_ = 0;
};

}  // namespace nanovllm
