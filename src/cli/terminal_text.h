// Texts of a model on a terminal, which must not obey them, and lines that end between words.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace nanovllm::cli {

// Control characters are shown as JSON writes them, \u001b for instance, but for tabs, newlines and
// returns before a newline.
std::string without_controls(std::string_view text);
// The same where `stream` is a terminal; others get the text as it is.
std::string shown_on(std::FILE* stream, std::string_view text);

// Takes a text in pieces as it comes and says what a terminal is to get for it, so that lines end
// between words: a word that turns out to be too long for its line is taken back and goes on the
// next one.
class WordWrap {
 public:
  // `text` is without controls; `columns` are the terminal's, which may change in between.
  std::string add(std::string_view text, int columns);

 private:
  void add_character(std::string_view bytes, uint32_t character, int limit, std::string& out);
  void end_word();

  int column_ = 0;        // of the cursor
  std::string word_;      // that is not at its end, as far as it is shown
  int word_columns_ = 0;  // of it
};

}  // namespace nanovllm::cli
