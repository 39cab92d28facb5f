#include "engine/bad_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/message.h"
#include "io/json.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace nanovllm {

std::string_view without_leading_space(std::string_view word) {
  const auto is_space = [](uint32_t c) { return text::is_space(c) || (c >= 0x1C && c <= 0x1F); };
  const size_t valid = text::find_invalid_utf8(word);
  size_t begin = 0;
  while (begin < valid && is_space(text::decode_utf8(word.data() + begin))) {
    begin += static_cast<size_t>(text::utf8_length(word[begin]));
  }
  return word.substr(begin);
}

namespace {

using Ids = std::vector<int32_t>;

// Decoders put spaces between tokens, and take some away before punctuation.
std::string without_spaces(std::string text) {
  std::erase(text, ' ');
  return text;
}

// The spellings of a word, without the white space it begins with, that are banned.
std::vector<Ids> forms_of(const std::string& word, const Tokenizer& tokenizer) {
  std::vector<Ids> forms = {tokenizer.encode(word, false)};
  Ids behind_space = tokenizer.encode(" " + word, false);
  if (behind_space.size() == forms[0].size() && !forms[0].empty() &&
      behind_space[0] != forms[0][0]) {
    forms.push_back(std::move(behind_space));
  }
  return forms;
}

// Why a model that writes as the tokenizer does can write the word and none of its `forms`, which
// are banned; empty = it can't.
std::string why_it_comes(const std::string& word, const std::vector<Ids>& forms,
                         const Tokenizer& tokenizer) {
  const std::string known = tokenizer.decode(forms[0], false);
  if (without_spaces(known) != without_spaces(word)) {
    return fmt::format("the tokenizer reads it as \"{}\"", printable(known));
  }
  const bool has_space_behind = word.ends_with(' ');
  const Ids ids = tokenizer.encode(" " + word + (has_space_behind ? "a" : ""), false);
  const auto is_in_text = [&](const Ids& form) {
    return std::search(ids.begin(), ids.end(), form.begin(), form.end()) != ids.end();
  };
  if (std::ranges::any_of(forms, is_in_text)) return "";
  if (has_space_behind) return "the space at its end belongs to the token of the next word";
  return fmt::format(
      "behind a space its tokens are {} and not {}; logit_bias can keep a token away",
      fmt::join(ids, ", "), fmt::join(forms[0], ", "));
}

}  // namespace

std::string remark_on_bad_word(const std::string& word, const Tokenizer& tokenizer) {
  const std::string rest(without_leading_space(word));
  const std::string why = why_it_comes(rest, forms_of(rest, tokenizer), tokenizer);
  if (why.empty()) return "";
  return fmt::format("bad_words: \"{}\" can come: {}", printable(word), why);
}

BadWords::BadWords(const std::vector<std::string>& words, const Tokenizer& tokenizer) {
  for (const std::string& word : words) {
    std::vector<Ids> forms = forms_of(std::string(without_leading_space(word)), tokenizer);
    if (forms[0].empty()) {
      throw_error(ErrorCode::kInvalidArgument,
                  "bad_words can't hold \"{}\": the tokenizer has no tokens for it",
                  printable(word));
    }
    depend_on_output_ |= forms[0].size() > 1;
    std::ranges::move(forms, std::back_inserter(words_));
  }
  std::ranges::sort(words_);
  words_.erase(std::unique(words_.begin(), words_.end()), words_.end());
}

void BadWords::append_banned(std::span<const int32_t> output, std::vector<int32_t>& ids) const {
  for (const std::vector<int32_t>& word : words_) {
    const auto before = std::span(word).first(word.size() - 1);
    if (before.size() <= output.size() && std::ranges::equal(before, output.last(before.size()))) {
      ids.push_back(word.back());
    }
  }
}

}  // namespace nanovllm
