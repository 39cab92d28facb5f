#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "text/jinja/parser.h"
#include "text/jinja/strings.h"
#include "text/unicode.h"

namespace nanovllm::jinja {
namespace {

constexpr std::string_view kOperators[] = {"**", "//", "==", "!=", ">=", "<=", "+", "-", "/",
                                           "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                           ">",  "<",  "=",  ".",  ":",  "|",  ","};

bool is_digit_char(char c) { return c >= '0' && c <= '9'; }
bool is_name_character(uint32_t c) {
  return c == '_' || (c < text::kInvalidByte && text::is_word(c));
}

// The characters that a backslash makes, given the text behind it; pos is advanced past them.
void append_escaped(std::string& out, std::string_view literal, size_t& pos) {
  const char letter = literal[pos];
  constexpr std::string_view kLetters = "abfnrtv\\'\"\n";
  static constexpr std::string_view kMeanings[] = {"\a", "\b", "\f", "\n", "\r", "\t",
                                                   "\v", "\\", "'",  "\"", ""};
  if (const size_t index = kLetters.find(letter); index != std::string_view::npos) {
    out += kMeanings[index];
    ++pos;
    return;
  }
  if (static_cast<unsigned char>(letter) >= 0x80 || letter == 'N' || is_digit_char(letter)) {
    fail("a backslash before N, a digit or no ASCII character is not supported in a string");
  }
  const size_t digits = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
  if (digits == 0) {
    out += '\\';
    return;
  }
  uint32_t c = 0;
  const char* begin = literal.data() + ++pos;
  const char* end = begin + std::min(digits, literal.size() - pos);
  const auto result = std::from_chars(begin, end, c, 16);
  if (static_cast<size_t>(result.ptr - begin) != digits || c > 0x10FFFF ||
      (c >= 0xD800 && c <= 0xDFFF)) {
    fail("\\{} needs {} hexadecimal digits of a Unicode character", letter, digits);
  }
  text::append_utf8(out, c);
  pos += digits;
}

class Lexer {
 public:
  Lexer(const std::string& source, uint32_t& offset) : source_(source), offset_(offset) {}

  std::vector<Token> run() {
    while (pos_ < source_.size()) lex_text();
    emit(TokenType::kEof, source_.size());
    return std::move(tokens_);
  }

 private:
  Token& emit(TokenType type, size_t offset, std::string_view text = {}) {
    tokens_.push_back({type, static_cast<uint32_t>(offset), std::string(text)});
    return tokens_.back();
  }
  template <typename... Args>
  [[noreturn]] void fail_at(size_t offset, fmt::format_string<Args...> format, Args&&... args) {
    offset_ = static_cast<uint32_t>(offset);
    fail(format, std::forward<Args>(args)...);
  }
  std::string_view from(size_t at) const {
    return std::string_view(source_).substr(std::min(at, source_.size()));
  }
  char at(size_t index) const { return index < source_.size() ? source_[index] : '\0'; }
  size_t skip_spaces(size_t index) const {
    return source_.size() - strip_spaces(from(index), Side::kLeft).size();
  }

  // Text up to the next tag, and the tag.
  void lex_text() {
    size_t open = source_.find('{', pos_);
    while (open != std::string::npos && at(open + 1) != '%' && at(open + 1) != '{' &&
           at(open + 1) != '#') {
      open = source_.find('{', open + 1);
    }
    if (open == std::string::npos) {
      emit_data(pos_, from(pos_));
      pos_ = source_.size();
      return;
    }
    const char tag = source_[open + 1];
    const char sign = at(open + 2);
    const bool has_sign = sign == '-' || sign == '+';
    emit_data(pos_, strip_before_tag(from(pos_).substr(0, open - pos_), sign, tag != '{'));
    pos_ = open + (has_sign ? 3 : 2);
    if (tag == '#') return lex_comment(open);
    emit(tag == '%' ? TokenType::kBlockBegin : TokenType::kVariableBegin, open);
    lex_tag(tag == '%');
  }

  void emit_data(size_t offset, std::string_view text) {
    if (!text.empty()) emit(TokenType::kData, offset, text);
  }

  // '-' strips all space before the tag; a block or comment that stands first in its line loses its
  // indentation (lstrip_blocks), unless '+' keeps it.
  std::string_view strip_before_tag(std::string_view text, char sign, bool strips_indent) const {
    if (sign == '-') return strip_spaces(text, Side::kRight);
    if (sign == '+' || !strips_indent) return text;
    const size_t newline = text.rfind('\n');
    const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
    if (line == 0 && !line_starting_) return text;
    return strip_spaces(text.substr(line), Side::kLeft).empty() ? text.substr(0, line) : text;
  }

  // The end tag at `index`, `close` being "%}", "#}" or "}}": where it ends, 0 when there is none.
  // It takes the newline after it along (trim_blocks) but for "}}", with '-' all space, with '+'
  // nothing.
  size_t match_end(size_t index, std::string_view close) const {
    const bool trims = close != "}}";
    if (from(index).starts_with(close)) {
      index += close.size();
      return trims && at(index) == '\n' ? index + 1 : index;
    }
    if (!from(index + 1).starts_with(close)) return 0;
    if (at(index) == '-') return skip_spaces(index + 1 + close.size());
    return at(index) == '+' && trims ? index + 1 + close.size() : 0;
  }

  void finish_tag(size_t end) {
    pos_ = end;
    line_starting_ = source_[end - 1] == '\n';
  }

  void lex_comment(size_t open) {
    const size_t close = source_.find("#}", pos_);
    if (close == std::string::npos) fail_at(open, "Missing end of comment tag");
    const bool has_sign = close > pos_ && (source_[close - 1] == '-' || source_[close - 1] == '+');
    finish_tag(match_end(has_sign ? close - 1 : close, "#}"));
  }

  void lex_tag(bool is_block) {
    open_brackets_.clear();
    while (pos_ < source_.size()) {
      if (open_brackets_.empty()) {
        if (const size_t end = match_end(pos_, is_block ? "%}" : "}}"); end != 0) {
          emit(is_block ? TokenType::kBlockEnd : TokenType::kVariableEnd, pos_);
          return finish_tag(end);
        }
      }
      if (const size_t space = skip_spaces(pos_); space != pos_) {
        pos_ = space;
      } else if (!lex_number() && !lex_name() && !lex_string() && !lex_operator()) {
        fail_at(pos_, "unexpected char {}",
                quote(from(pos_).substr(0, code_point_offset(from(pos_), 1))));
      }
    }
  }

  size_t skip_digits(size_t index) const {
    while (is_digit_char(at(index))) ++index;
    return index;
  }

  bool lex_number() {
    const size_t whole = skip_digits(pos_);
    if (whole == pos_) return false;
    size_t end = whole;
    // "x.1.5" is an item of an item, not a float.
    const bool after_dot = pos_ > 0 && source_[pos_ - 1] == '.';
    if (at(end) == '.' && !after_dot) end = std::max(end, skip_digits(end + 1));
    if (end == whole + 1) end = whole;
    if ((at(end) | 0x20) == 'e' && !after_dot) {
      const size_t digits = end + (at(end + 1) == '+' || at(end + 1) == '-' ? 2 : 1);
      if (is_digit_char(at(digits))) end = skip_digits(digits);
    }
    size_t next = end;
    if (end < source_.size() && is_name_character(text::next_character(source_, next))) {
      fail_at(pos_, "this number is not supported: only decimal digits can be in one");
    }
    const char* begin = source_.data() + pos_;
    Value& number = emit(TokenType::kNumber, pos_).number;
    if (end == whole) {
      uint64_t integer = 0;
      if (*begin == '0' && end > pos_ + 1) fail_at(pos_, "an integer can't begin with 0");
      const auto result = std::from_chars(begin, source_.data() + end, integer);
      if (result.ec != std::errc()) fail_at(pos_, "integers are limited to 64 bits");
      number = Value::unsigned_integer(integer);
    } else {
      number = Value::number(std::strtod(begin, nullptr));
    }
    pos_ = end;
    return true;
  }

  bool lex_name() {
    size_t end = pos_;
    for (size_t next = pos_; next < source_.size(); end = next) {
      if (!is_name_character(text::next_character(source_, next))) break;
    }
    if (end == pos_) return false;
    emit(TokenType::kName, pos_, from(pos_).substr(0, end - pos_));
    pos_ = end;
    return true;
  }

  bool lex_string() {
    const char mark = source_[pos_];
    if (mark != '\'' && mark != '"') return false;
    size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != mark) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return false;
    offset_ = static_cast<uint32_t>(pos_);
    const std::string_view literal = from(pos_ + 1).substr(0, end - pos_ - 1);
    std::string& out = emit(TokenType::kString, pos_).text;
    for (size_t i = 0; i < literal.size();) {
      if (literal[i] != '\\') {
        out += literal[i++];
      } else {
        append_escaped(out, literal, ++i);
      }
    }
    pos_ = end + 1;
    return true;
  }

  bool lex_operator() {
    for (const std::string_view text : kOperators) {
      if (!from(pos_).starts_with(text)) continue;
      const char c = text[0];
      if (c == '(' || c == '[' || c == '{') {
        open_brackets_ += c == '(' ? ')' : c == '[' ? ']' : '}';
      } else if (c == ')' || c == ']' || c == '}') {
        if (open_brackets_.empty()) fail_at(pos_, "unexpected '{}'", c);
        if (open_brackets_.back() != c) {
          fail_at(pos_, "unexpected '{}', expected '{}'", c, open_brackets_.back());
        }
        open_brackets_.pop_back();
      }
      emit(TokenType::kOperator, pos_, text);
      pos_ += text.size();
      return true;
    }
    return false;
  }

  const std::string& source_;
  uint32_t& offset_;
  size_t pos_ = 0;
  bool line_starting_ = true;
  std::string open_brackets_;  // the closing ones that are due, innermost last
  std::vector<Token> tokens_;
};

}  // namespace

std::string normalize_source(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    out += source[i] == '\r' ? '\n' : source[i];
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

std::vector<Token> tokenize(const std::string& source, uint32_t& offset) {
  return Lexer(source, offset).run();
}

std::string describe(const Token& token) {
  switch (token.type) {
    case TokenType::kName:
    case TokenType::kOperator:
      return token.text;
    case TokenType::kData:
      return "text";
    case TokenType::kVariableBegin:
      return "{{";
    case TokenType::kVariableEnd:
      return "}}";
    case TokenType::kBlockBegin:
      return "{%";
    case TokenType::kBlockEnd:
      return "%}";
    case TokenType::kString:
      return "string";
    case TokenType::kNumber:
      return "number";
    case TokenType::kEof:
      return "end of template";
  }
  return "";
}

}  // namespace nanovllm::jinja
