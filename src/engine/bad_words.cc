#include "engine/bad_words.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
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

BadWords::BadWords(const std::vector<std::string>& words, const Tokenizer& tokenizer) {
  for (const std::string& word : words) {
    const std::string rest(without_leading_space(word));
    std::vector<int32_t> ids = tokenizer.encode(rest, false);
    std::vector<int32_t> behind_space = tokenizer.encode(" " + rest, false);
    if (ids.empty()) {
      throw_error(ErrorCode::kInvalidArgument,
                  "bad_words can't hold \"{}\": the tokenizer has no tokens for it",
                  printable(word));
    }
    const bool is_another = behind_space.size() == ids.size() && behind_space[0] != ids[0];
    depend_on_output_ |= ids.size() > 1;
    words_.push_back(std::move(ids));
    if (is_another) words_.push_back(std::move(behind_space));
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
