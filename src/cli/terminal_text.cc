#include "cli/terminal_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cwchar>

#include "cli/terminal.h"
#include "text/utf8.h"

namespace nanovllm::cli {
namespace {

constexpr int kTab = 8;  // columns

bool is_control(uint32_t c) { return c < 0x20 || (c >= 0x7F && c < 0xA0); }

int columns_of(uint32_t c) {
  const int width = c < text::kInvalidByte ? ::wcwidth(static_cast<wchar_t>(c)) : 1;
  return width < 0 ? 1 : width;  // what the locale does not know is shown as a box
}

}  // namespace

std::string without_controls(std::string_view text) {
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t c = text::next_character(text, at);
    if (c == '\n' || c == '\t' || !is_control(c)) {
      shown += text.substr(begin, at - begin);
    } else if (c != '\r' || !text.substr(at).starts_with('\n')) {
      shown += fmt::format("\\u{:04x}", c);
    }
  }
  return shown;
}

std::string shown_on(std::FILE* stream, std::string_view text) {
  return is_terminal(stream) ? without_controls(text) : std::string(text);
}

std::string WordWrap::add(std::string_view text, int columns) {
  const int limit = std::max(columns - 1, 1);  // a terminal whose last column is full may wrap too
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t c = text::next_character(text, at);
    add_character(text.substr(begin, at - begin), c, limit, out);
  }
  return out;
}

void WordWrap::add_character(std::string_view bytes, uint32_t character, int limit,
                             std::string& out) {
  const bool is_blank = character == ' ' || character == '\t';
  if (character == '\n') {
    column_ = 0;
    end_word();
    out += bytes;
    return;
  }
  const int width = character == '\t' ? kTab - column_ % kTab : columns_of(character);
  const bool fits = column_ + width <= limit;
  const bool stands_alone = is_blank || width == 2;  // scripts of wide signs have no blanks
  if (stands_alone) end_word();
  if (is_blank && !fits) {  // the next word's line begins without it
    column_ = limit;
    return;
  }
  if (!fits) {
    if (word_columns_ == column_) end_word();  // no line holds it whole
    if (word_columns_ > 0) out += std::string(static_cast<size_t>(word_columns_), '\b') + "\x1b[K";
    out += "\n" + word_;
    column_ = word_columns_;
  }
  out += bytes;
  column_ += width;
  if (stands_alone) return;
  word_ += bytes;
  word_columns_ += width;
}

void WordWrap::end_word() {
  word_.clear();
  word_columns_ = 0;
}

}  // namespace nanovllm::cli
