#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "text/jinja/error.h"
#include "text/jinja/escapes.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {
namespace {

constexpr std::array<std::pair<std::string_view, TokenType>, 26> kOperators = {{
    {"**", TokenType::kPow},        {"//", TokenType::kFloorDiv},    {"==", TokenType::kEq},
    {"!=", TokenType::kNe},         {">=", TokenType::kGe},          {"<=", TokenType::kLe},
    {"+", TokenType::kAdd},         {"-", TokenType::kSub},          {"/", TokenType::kDiv},
    {"*", TokenType::kMul},         {"%", TokenType::kMod},          {"~", TokenType::kTilde},
    {"[", TokenType::kLeftBracket}, {"]", TokenType::kRightBracket}, {"(", TokenType::kLeftParen},
    {")", TokenType::kRightParen},  {"{", TokenType::kLeftBrace},    {"}", TokenType::kRightBrace},
    {">", TokenType::kGt},          {"<", TokenType::kLt},           {"=", TokenType::kAssign},
    {".", TokenType::kDot},         {":", TokenType::kColon},        {"|", TokenType::kPipe},
    {",", TokenType::kComma},       {";", TokenType::kSemicolon},
}};

bool is_digit_char(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  Lexer(const std::string& source, uint32_t& offset) : source_(source), offset_(offset) {}

  std::vector<Token> run() {
    while (pos_ < source_.size()) lex_text();
    emit(TokenType::kEof, source_.size());
    return std::move(tokens_);
  }

 private:
  enum class Tag { kComment, kBlock, kVariable };

  Token& emit(TokenType type, size_t offset) {
    Token& token = tokens_.emplace_back();
    token.type = type;
    token.offset = static_cast<uint32_t>(offset);
    return token;
  }
  template <typename... Args>
  [[noreturn]] void fail_at(size_t offset, fmt::format_string<Args...> format, Args&&... args) {
    offset_ = static_cast<uint32_t>(offset);
    fail(Fault::kSyntax, format, std::forward<Args>(args)...);
  }

  bool starts(std::string_view text, size_t at) const {
    return std::string_view(source_).substr(std::min(at, source_.size())).starts_with(text);
  }
  size_t skip_spaces(size_t at) const {
    while (at < source_.size()) {
      size_t next = at;
      if (!is_space(decode(source_, next))) break;
      at = next;
    }
    return at;
  }

  // Text up to the next tag, and the tag.
  void lex_text() {
    size_t open = pos_;
    for (;; ++open) {
      open = source_.find('{', open);
      if (open == std::string::npos || open + 1 >= source_.size()) {
        emit_data(pos_, std::string_view(source_).substr(pos_));
        pos_ = source_.size();
        return;
      }
      const char mark = source_[open + 1];
      if (mark == '%' || mark == '{' || mark == '#') break;
    }
    const Tag tag = source_[open + 1] == '%'   ? Tag::kBlock
                    : source_[open + 1] == '{' ? Tag::kVariable
                                               : Tag::kComment;
    size_t after = open + 2;
    char sign = 0;
    if (after < source_.size() && (source_[after] == '-' || source_[after] == '+')) {
      sign = source_[after++];
    }
    emit_data(pos_, strip_before_tag(std::string_view(source_).substr(pos_, open - pos_), sign,
                                     tag != Tag::kVariable));
    if (tag == Tag::kBlock) {
      if (const size_t raw = match_raw_begin(after); raw != 0) return lex_raw(open, raw);
    }
    pos_ = after;
    if (tag == Tag::kComment) return lex_comment(open);
    emit(tag == Tag::kBlock ? TokenType::kBlockBegin : TokenType::kVariableBegin, open);
    lex_tag(tag == Tag::kBlock);
  }

  void emit_data(size_t offset, std::string_view text) {
    if (!text.empty()) emit(TokenType::kData, offset).text = text;
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

  // The end tag at `at`, `close` being "%}" or "#}": where it ends, 0 when there is none. It takes
  // the newline after it along (trim_blocks), with '-' all space, with '+' nothing.
  size_t match_end(size_t at, std::string_view close) const {
    if (starts(close, at)) {
      at += close.size();
      return at < source_.size() && source_[at] == '\n' ? at + 1 : at;
    }
    if (at >= source_.size() || !starts(close, at + 1)) return 0;
    if (source_[at] == '+') return at + 1 + close.size();
    if (source_[at] == '-') return skip_spaces(at + 1 + close.size());
    return 0;
  }

  void finish_tag(size_t end) {
    pos_ = end;
    line_starting_ = source_[end - 1] == '\n';
  }

  // The end of "raw %}" from behind the opening "{%", 0 when it is another tag.
  size_t match_raw_begin(size_t at) const {
    at = skip_spaces(at);
    if (!starts("raw", at)) return 0;
    at = skip_spaces(at + 3);
    if (starts("%}", at)) return at + 2;
    return starts("-%}", at) ? skip_spaces(at + 3) : 0;
  }

  void lex_raw(size_t open, size_t begin) {
    line_starting_ = source_[begin - 1] == '\n';
    for (size_t at = source_.find("{%", begin); at != std::string::npos;
         at = source_.find("{%", at + 1)) {
      size_t word = at + 2;
      char sign = 0;
      if (word < source_.size() && (source_[word] == '-' || source_[word] == '+')) {
        sign = source_[word++];
      }
      word = skip_spaces(word);
      if (!starts("endraw", word)) continue;
      const size_t end = match_end(skip_spaces(word + 6), "%}");
      if (end == 0) continue;
      emit_data(begin,
                strip_before_tag(std::string_view(source_).substr(begin, at - begin), sign, true));
      return finish_tag(end);
    }
    fail_at(open, "Missing end of raw directive");
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
        const size_t end = is_block ? match_end(pos_, "%}") : match_variable_end(pos_);
        if (end != 0) {
          emit(is_block ? TokenType::kBlockEnd : TokenType::kVariableEnd, pos_);
          return finish_tag(end);
        }
      }
      const size_t space = skip_spaces(pos_);
      if (space != pos_) {
        pos_ = space;
      } else if (!lex_number() && !lex_name() && !lex_string() && !lex_operator()) {
        size_t next = pos_;
        decode(source_, next);
        fail_at(pos_, "unexpected char {}",
                quote(std::string_view(source_).substr(pos_, next - pos_)));
      }
    }
  }

  size_t match_variable_end(size_t at) const {
    if (starts("}}", at)) return at + 2;
    return starts("-}}", at) ? skip_spaces(at + 3) : 0;
  }

  // Digits with single underscores between them; returns their end, `at` when there are none.
  template <typename IsDigit>
  size_t skip_digits(size_t at, const IsDigit& is_one) const {
    if (at >= source_.size() || !is_one(source_[at])) return at;
    ++at;
    while (at < source_.size()) {
      if (is_one(source_[at])) {
        ++at;
      } else if (source_[at] == '_' && at + 1 < source_.size() && is_one(source_[at + 1])) {
        at += 2;
      } else {
        break;
      }
    }
    return at;
  }

  bool lex_number() {
    const size_t whole = skip_digits(pos_, is_digit_char);
    if (whole == pos_) return false;
    size_t end = whole;
    if (end < source_.size() && source_[end] == '.') {
      const size_t fraction = skip_digits(end + 1, is_digit_char);
      if (fraction != end + 1) end = fraction;
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t digits = end + 1;
      if (digits < source_.size() && (source_[digits] == '+' || source_[digits] == '-')) ++digits;
      const size_t exponent = skip_digits(digits, is_digit_char);
      if (exponent != digits) end = exponent;
    }
    // "x.1.5" is an item of an item, not a float.
    const bool after_dot = pos_ > 0 && source_[pos_ - 1] == '.';
    if (end == whole || after_dot) return lex_integer();
    std::string digits = source_.substr(pos_, end - pos_);
    std::erase(digits, '_');
    emit(TokenType::kFloat, pos_).number = std::strtod(digits.c_str(), nullptr);
    pos_ = end;
    return true;
  }

  bool lex_integer() {
    int base = 10;
    size_t begin = pos_;
    size_t end = pos_;
    if (source_[pos_] != '0') {
      end = skip_digits(pos_, is_digit_char);
    } else {
      const char prefix =
          pos_ + 1 < source_.size() ? static_cast<char>(source_[pos_ + 1] | 0x20) : ' ';
      base = prefix == 'b' ? 2 : prefix == 'o' ? 8 : prefix == 'x' ? 16 : 10;
      const auto is_one = [&](char c) {
        const int digit = is_digit_char(c) ? c - '0' : ((c | 0x20) - 'a' + 10);
        return base == 10 ? c == '0' : digit >= 0 && digit < base;
      };
      begin = base == 10 ? pos_ : pos_ + 2;
      const size_t from =
          base != 10 && begin < source_.size() && source_[begin] == '_' ? begin + 1 : begin;
      end = skip_digits(from, is_one);
      if (end == from) {  // "0x" without digits is 0 and a name
        base = 10;
        begin = pos_;
        end = pos_ + 1;
      }
    }
    std::string digits = source_.substr(begin, end - begin);
    std::erase(digits, '_');
    Token& token = emit(TokenType::kInteger, pos_);
    const auto result =
        std::from_chars(digits.data(), digits.data() + digits.size(), token.integer, base);
    if (result.ec != std::errc()) fail_at(pos_, "integers are limited to 64 bits");
    pos_ = end;
    return true;
  }

  bool lex_name() {
    size_t end = pos_;
    while (end < source_.size()) {
      size_t next = end;
      if (!is_name_character(decode(source_, next))) break;
      end = next;
    }
    if (end == pos_) return false;
    Token& token = emit(TokenType::kName, pos_);
    token.text = source_.substr(pos_, end - pos_);
    if (!is_identifier(token.text)) fail_at(pos_, "Invalid character in identifier");
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
    emit(TokenType::kString, pos_).text =
        unescape(std::string_view(source_).substr(pos_ + 1, end - pos_ - 1));
    pos_ = end + 1;
    return true;
  }

  bool lex_operator() {
    for (const auto& [text, type] : kOperators) {
      if (!starts(text, pos_)) continue;
      balance(type);
      emit(type, pos_);
      pos_ += text.size();
      return true;
    }
    return false;
  }

  void balance(TokenType type) {
    switch (type) {
      case TokenType::kLeftParen:
        open_brackets_.push_back(')');
        break;
      case TokenType::kLeftBracket:
        open_brackets_.push_back(']');
        break;
      case TokenType::kLeftBrace:
        open_brackets_.push_back('}');
        break;
      case TokenType::kRightParen:
      case TokenType::kRightBracket:
      case TokenType::kRightBrace:
        if (open_brackets_.empty()) fail_at(pos_, "unexpected '{}'", source_[pos_]);
        if (open_brackets_.back() != source_[pos_]) {
          fail_at(pos_, "unexpected '{}', expected '{}'", source_[pos_], open_brackets_.back());
        }
        open_brackets_.pop_back();
        break;
      default:
        break;
    }
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
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

std::vector<Token> tokenize(const std::string& source, uint32_t& offset) {
  return Lexer(source, offset).run();
}

std::string_view describe(TokenType type) {
  switch (type) {
    case TokenType::kData:
      return "template data / text";
    case TokenType::kVariableBegin:
      return "begin of print statement";
    case TokenType::kVariableEnd:
      return "end of print statement";
    case TokenType::kBlockBegin:
      return "begin of statement block";
    case TokenType::kBlockEnd:
      return "end of statement block";
    case TokenType::kName:
      return "name";
    case TokenType::kString:
      return "string";
    case TokenType::kInteger:
      return "integer";
    case TokenType::kFloat:
      return "float";
    case TokenType::kEof:
      return "end of template";
    default:
      break;
  }
  for (const auto& [text, operator_type] : kOperators) {
    if (operator_type == type) return text;
  }
  return "token";
}

std::string describe(const Token& token) {
  return token.type == TokenType::kName ? token.text : std::string(describe(token.type));
}

Position position_of(std::string_view source, uint32_t offset) {
  const std::string_view before = source.substr(0, std::min<size_t>(offset, source.size()));
  const size_t newline = before.rfind('\n');
  const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
  Position position;
  position.line += static_cast<int>(std::count(before.begin(), before.end(), '\n'));
  position.column += static_cast<int>(count_code_points(before.substr(line)));
  return position;
}

}  // namespace nanovllm::jinja
