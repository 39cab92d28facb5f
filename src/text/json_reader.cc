#include "text/json_reader.h"

#include <algorithm>
#include <cstring>

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
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) fail("four hexadecimal digits were expected after \\u");
    value = value << 4 | static_cast<uint32_t>(digit);
  }
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
  uint64_t value = 0;
  const char c = peek();
  if (c < '0' || c > '9') fail("a non-negative integer was expected");
  const size_t start = at_;
  while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
    value = value * 10 + static_cast<uint64_t>(text_[at_] - '0');
    if (value > UINT32_MAX) fail("an integer is too large");
    ++at_;
  }
  if (c == '0' && at_ - start > 1) fail("an integer starts with 0");
  if (at_ < text_.size() && (text_[at_] == '.' || text_[at_] == 'e' || text_[at_] == 'E')) {
    fail("a non-negative integer was expected");
  }
  return static_cast<uint32_t>(value);
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
