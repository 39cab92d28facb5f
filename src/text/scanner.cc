#include "text/scanner.h"

#include <cstdint>
#include <utility>

#include "text/unicode.h"
#include "text/utf8.h"

namespace nanovllm::text {

namespace {

constexpr std::pair<KnownPattern, std::string_view> kPatterns[] = {
    {KnownPattern::kGpt2,
     R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    {KnownPattern::kOneDigit,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {KnownPattern::kThreeDigits,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
};

class Cursor {
 public:
  Cursor(std::string_view text, size_t at) : text_(text), at_(at) {}

  bool done() const { return at_ >= text_.size(); }
  size_t at() const { return at_; }
  CharClass peek() const { return class_at(at_); }
  // Class of the character after this one; none at the end.
  std::optional<CharClass> peek_second() const {
    const size_t second = at_ + length();
    if (second >= text_.size()) return std::nullopt;
    return class_at(second);
  }
  size_t length() const { return utf8_length(text_[at_]); }
  void next() { at_ += length(); }
  void skip(CharClass wanted) {
    while (!done() && peek() == wanted) next();
  }

 private:
  CharClass class_at(size_t i) const {
    const auto lead = static_cast<uint8_t>(text_[i]);
    if (lead < 0x80) return kAsciiClasses[lead];
    return class_of_non_ascii(decode_utf8(text_.data() + i));
  }
  std::string_view text_;
  size_t at_;
};

bool is_blank(CharClass c) { return c == CharClass::kSpace || c == CharClass::kNewline; }

// 's 't 're 've 'm 'll 'd after the apostrophe at `at`: bytes of the match with the apostrophe, or
// 0.
size_t contraction(std::string_view text, size_t at, bool any_case) {
  const auto letter = [&](size_t i) {
    const char c = at + i < text.size() ? text[at + i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char first = letter(1), second = letter(2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if ((first == 'r' || first == 'v') && second == 'e') return 3;
  if (first == 'l' && second == 'l') return 3;
  // The long s is a lower-case s to a case-insensitive match.
  if (any_case && text.substr(at + 1, 2) == "\xC5\xBF") return 3;
  return 0;
}

// \s+(?!\S)|\s+ from the start of a run of white space: all of it at the end of the text, else all
// but its last character, which the next word may want.
size_t scan_blanks(std::string_view text, size_t at) {
  Cursor cursor(text, at);
  size_t last = at;
  while (!cursor.done() && is_blank(cursor.peek())) {
    last = cursor.at();
    cursor.next();
  }
  return cursor.done() || last == at ? cursor.at() : last;
}

size_t scan_gpt2(std::string_view text, size_t at) {
  if (text[at] == '\'') {
    if (const size_t length = contraction(text, at, false)) return at + length;
  }
  Cursor cursor(text, at);
  CharClass c = cursor.peek();
  if (text[at] == ' ') {
    const auto second = cursor.peek_second();
    if (!second || is_blank(*second)) return scan_blanks(text, at);
    cursor.next();
    c = *second;
  } else if (is_blank(c)) {
    return scan_blanks(text, at);
  }
  cursor.skip(c);
  return cursor.at();
}

// \s*[\r\n]+|\s+(?!\S)|\s+ from the start of a run of white space.
size_t scan_blanks_to_newline(std::string_view text, size_t at) {
  Cursor cursor(text, at);
  size_t after_newline = at;
  while (!cursor.done() && is_blank(cursor.peek())) {
    const bool newline = cursor.peek() == CharClass::kNewline;
    cursor.next();
    if (newline) after_newline = cursor.at();
  }
  return after_newline != at ? after_newline : scan_blanks(text, at);
}

size_t scan_cl100k(std::string_view text, size_t at, int max_digits) {
  if (text[at] == '\'') {
    if (const size_t length = contraction(text, at, true)) return at + length;
  }
  Cursor cursor(text, at);
  const CharClass c = cursor.peek();
  if (c == CharClass::kLetter) {
    cursor.skip(CharClass::kLetter);
    return cursor.at();
  }
  if (c == CharClass::kNumber) {
    for (int i = 0; i < max_digits && !cursor.done() && cursor.peek() == c; ++i) cursor.next();
    return cursor.at();
  }
  const auto second = cursor.peek_second();
  if (second == CharClass::kLetter && c != CharClass::kNewline) {
    cursor.next();
    cursor.skip(CharClass::kLetter);
    return cursor.at();
  }
  if (c == CharClass::kOther || (text[at] == ' ' && second == CharClass::kOther)) {
    cursor.next();
    cursor.skip(CharClass::kOther);
    cursor.skip(CharClass::kNewline);
    return cursor.at();
  }
  return scan_blanks_to_newline(text, at);
}

}  // namespace

std::optional<KnownPattern> known_pattern(std::string_view regex) {
  for (const auto& [pattern, source] : kPatterns) {
    if (source == regex) return pattern;
  }
  return std::nullopt;
}

std::string_view regex_of(KnownPattern pattern) {
  for (const auto& [known, source] : kPatterns) {
    if (known == pattern) return source;
  }
  return {};
}

size_t scan(KnownPattern pattern, std::string_view text, size_t at) {
  switch (pattern) {
    case KnownPattern::kGpt2:
      return scan_gpt2(text, at);
    case KnownPattern::kOneDigit:
      return scan_cl100k(text, at, 1);
    case KnownPattern::kThreeDigits:
      return scan_cl100k(text, at, 3);
  }
  return text.size();
}

}  // namespace nanovllm::text
