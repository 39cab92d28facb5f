// Texts that an output must not hold, as the tokens that spell them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/tokenizer.h"

namespace nanovllm {

// A bad word without the white space that it begins with, of which vLLM takes no notice either.
std::string_view without_leading_space(std::string_view word);

class BadWords {
 public:
  BadWords() = default;
  // Each word counts as it is spelled at the beginning of a text, and behind a space where that is
  // as many tokens of which the first is another one: vLLM's rule. Throws Error(kInvalidArgument)
  // for one that has no tokens.
  BadWords(const std::vector<std::string>& words, const Tokenizer& tokenizer);

  bool empty() const { return words_.empty(); }
  // Whether what is banned depends on the tokens before.
  bool look_back() const { return look_back_; }
  // Appends the last token of each word whose other tokens `output` ends with.
  void append_banned(std::span<const int32_t> output, std::vector<int32_t>& ids) const;

 private:
  std::vector<std::vector<int32_t>> words_;
  bool look_back_ = false;
};

}  // namespace nanovllm
