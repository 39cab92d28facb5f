// Texts that an output must not hold, as the tokens that spell them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/tokenizer.h"

namespace nanovllm {

// A bad word without the white space at its beginning, which vLLM ignores too.
std::string_view without_leading_space(std::string_view word);

// A sentence that says why the word can come all the same; empty = it can't. Costs several times
// what banning the word does.
std::string remark_on_bad_word(const std::string& word, const Tokenizer& tokenizer);

class BadWords {
 public:
  BadWords() = default;
  // Each word is tokenised without and with a space before it. The second form is added only if it
  // has as many tokens as the first and another first token: vLLM's rule. Throws
  // Error(kInvalidArgument) for a word that has no tokens.
  BadWords(const std::vector<std::string>& words, const Tokenizer& tokenizer);

  bool empty() const { return words_.empty(); }
  // Whether some word has several tokens, so that what is banned depends on the output before.
  bool depend_on_output() const { return depend_on_output_; }
  // Appends to `ids` the last token of each word whose other tokens are the end of `output` (the
  // prompt does not count).
  void append_banned(std::span<const int32_t> output, std::vector<int32_t>& ids) const;

 private:
  std::vector<std::vector<int32_t>> words_;
  bool depend_on_output_ = false;
};

}  // namespace nanovllm
