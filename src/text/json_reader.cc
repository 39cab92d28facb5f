#include "text/json_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "text/utf8.h"

namespace nanovllm::text {

void JsonReader::fail(const std::string& what) const {
  const std::string_view before = text_.substr(0, std::min(at_, text_.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = 1 + before.size() - (newline == before.npos ? 0 : newline + 1);
  throw_error(ErrorCode::kCorruptData, "{}: line {}, column {}: {}", *origin_, line, column, what);
}

void JsonReader::skip_space() {
  // Indentation is most of a pretty-printed vocabulary, hence eight blanks at a time.
  constexpr uint64_t kBlanks = 0x2020202020202020u;
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
    ++at_;
    for (uint64_t word; at_ + 8 <= text_.size(); at_ += 8) {
      std::memcpy(&word, text_.data() + at_, 8);
      if (word != kBlanks) break;
    }
  }
}

char JsonReader::peek() {
  skip_space();
  return at_ < text_.size() ? text_[at_] : '\0';
}

void JsonReader::begin(char bracket) {
  if (peek() != bracket) fail(bracket == '{' ? "an object was expected" : "a list was expected");
  ++at_;
}

bool JsonReader::next_element(bool& first) {
  const char c = peek();
  if (c == ']') {
    ++at_;
    return false;
  }
  if (!first) {
    if (c != ',') fail("',' or ']' was expected");
    ++at_;
  }
  first = false;
  return true;
}

bool JsonReader::next_member(bool& first, std::string& name) {
  const char c = peek();
  if (c == '}') {
    ++at_;
    return false;
  }
  if (!first) {
    if (c != ',') fail("',' or '}' was expected");
    ++at_;
  }
  first = false;
  name = string();
  if (peek() != ':') fail("':' was expected after a name");
  ++at_;
  return true;
}

std::string_view JsonReader::string() {
  if (peek() != '"') fail("a string was expected");
  const size_t start = ++at_;
  uint8_t any = 0;
  while (at_ < text_.size()) {
    const auto c = static_cast<uint8_t>(text_[at_]);
    if (c == '"') {
      const std::string_view value = text_.substr(start, at_ - start);
      if (any >= 0x80 && find_invalid_utf8(value) != value.size()) fail("a string is not UTF-8");
      ++at_;
      return value;
    }
    if (c == '\\') return unescape(start);
    if (c < 0x20) fail("a control character in a string");
    any |= c;
    ++at_;
  }
  fail("a string does not end");
}

uint32_t JsonReader::hex4() {
  uint32_t value = 0;
  const char* begin = text_.data() + at_;
  const char* end = begin + std::min<size_t>(4, text_.size() - at_);
  if (std::from_chars(begin, end, value, 16).ptr != begin + 4) {
    fail("four hexadecimal digits were expected after \\u");
  }
  at_ += 4;
  return value;
}

std::string_view JsonReader::unescape(size_t start) {
  scratch_.assign(text_.substr(start, at_ - start));
  while (at_ < text_.size()) {
    const char c = text_[at_++];
    if (c == '"') {
      if (find_invalid_utf8(scratch_) != scratch_.size()) fail("a string is not UTF-8");
      return scratch_;
    }
    if (static_cast<uint8_t>(c) < 0x20) fail("a control character in a string");
    if (c != '\\') {
      scratch_.push_back(c);
      continue;
    }
    const char escape = at_ < text_.size() ? text_[at_++] : '\0';
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    if (const size_t i = kNames.find(escape); escape != '\0' && i != kNames.npos) {
      scratch_.push_back(kValues[i]);
      continue;
    }
    if (escape != 'u') fail("an unknown escape in a string");
    uint32_t code = hex4();
    if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_, 2) == "\\u") {
      at_ += 2;
      const uint32_t low = hex4();
      if (low < 0xDC00 || low > 0xDFFF) fail("half a surrogate pair in a string");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xD800 && code <= 0xDFFF) {
      fail("half a surrogate pair in a string");
    }
    append_utf8(scratch_, code);
  }
  fail("a string does not end");
}

uint32_t JsonReader::unsigned_integer() {
  const bool is_padded = peek() == '0';
  uint32_t value = 0;
  const char* begin = text_.data() + at_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
  if (error == std::errc::result_out_of_range) fail("an integer is too large");
  at_ += static_cast<size_t>(end - begin);
  const char next = at_ < text_.size() ? text_[at_] : '\0';
  if (end == begin || (is_padded && end > begin + 1) || next == '.' || next == 'e' || next == 'E') {
    fail("a non-negative integer was expected");
  }
  return value;
}

// The digits that fit into 64 bits, times or by a power of ten: where both are large it is not the
// nearest double, but sums of scores that are equal for `tokenizers` are equal here too.
double JsonReader::number() {
  std::string_view text = skip_value();
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  if (text.find_first_of("0123456789") != 0) fail("a number was expected");
  uint64_t digits = 0;
  int64_t exponent = 0;
  bool is_fraction = false, is_full = false;
  for (; !text.empty() && text[0] != 'e' && text[0] != 'E'; text.remove_prefix(1)) {
    const auto digit = static_cast<uint64_t>(text[0] - '0');
    if (digit <= 9) {
      is_full = is_full || digits > (UINT64_MAX - digit) / 10;
      if (!is_full) digits = digits * 10 + digit;
      exponent += static_cast<int>(is_full) - static_cast<int>(is_fraction);
    } else if (text[0] != '.' || std::exchange(is_fraction, true)) {
      fail("a number was expected");
    }
  }
  if (!text.empty()) {
    text.remove_prefix(text.substr(1).starts_with('+') ? 2 : 1);
    int written = 0;
    const auto [end, error] = std::from_chars(text.begin(), text.end(), written);
    if (error != std::errc() || end != text.end()) fail("an exponent was expected");
    exponent += written;
  }
  auto value = static_cast<double>(digits);
  for (; exponent < -308 && value != 0; exponent += 308) value /= 1e308;
  const double power = std::pow(10.0, static_cast<double>(std::abs(exponent)));
  if (value != 0) value = exponent < 0 ? value / power : value * power;
  if (!std::isfinite(value)) fail("a number is too large");
  return negative ? -value : value;
}

void JsonReader::skip_string() {
  ++at_;
  while (at_ < text_.size()) {
    const char c = text_[at_++];
    if (c == '"') return;
    if (c == '\\') ++at_;
  }
  fail("a string does not end");
}

std::string_view JsonReader::skip_value() {
  peek();
  const size_t start = at_;
  std::string open;  // closing brackets still to come
  do {
    const char c = peek();
    if (c == '"') {
      skip_string();
    } else if (c == '{' || c == '[') {
      open.push_back(c == '{' ? '}' : ']');
      ++at_;
    } else if (!open.empty() && c == open.back()) {
      open.pop_back();
      ++at_;
    } else if (!open.empty() && (c == ',' || c == ':')) {
      ++at_;
    } else {
      const size_t word = at_;
      while (at_ < text_.size() &&
             std::string_view(",:]}{[\" \n\t\r").find(text_[at_]) == std::string_view::npos) {
        ++at_;
      }
      if (at_ == word) fail("a value was expected");
    }
  } while (!open.empty());
  return text_.substr(start, at_ - start);
}

void JsonReader::end() {
  if (peek() != '\0' || at_ < text_.size()) fail("more after the end of the document");
}

}  // namespace nanovllm::text
