#include "text/jinja/unicode.h"

#include <array>
#include <cstring>

#include "text/jinja/unicode_category.h"

namespace nanovllm::jinja {

char32_t decode(std::string_view text, size_t& pos) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(pos);
  if (lead < 0x80) return text[pos++];
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  static constexpr std::array<char32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  char32_t c = lead & (0xFFU >> (length + 1));
  bool valid = lead >= 0xC2 && lead <= 0xF4 && pos + length <= text.size();
  for (size_t i = 1; valid && i < length; ++i) {
    valid = (byte(pos + i) & 0xC0) == 0x80;
    c = (c << 6) | (byte(pos + i) & 0x3FU);
  }
  if (!valid || c < kSmallest[length] || c > 0x10FFFF) {
    ++pos;
    return kInvalidByte + lead;
  }
  pos += length;
  return c;
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else if (c < kInvalidByte) {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(c - kInvalidByte);
  }
}

bool is_ascii(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, sizeof(word));
    if (word & 0x8080808080808080ULL) return false;
  }
  for (; i < text.size(); ++i) {
    if (static_cast<unsigned char>(text[i]) >= 0x80) return false;
  }
  return true;
}

size_t count_code_points(std::string_view text) {
  if (is_ascii(text)) return text.size();
  size_t count = 0;
  for (size_t pos = 0; pos < text.size(); ++count) decode(text, pos);
  return count;
}

size_t code_point_offset(std::string_view text, size_t index) {
  size_t pos = 0;
  for (; index > 0 && pos < text.size(); --index) decode(text, pos);
  return pos;
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_line_break(char32_t c) {
  return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_alpha(char32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_digit(char32_t c) { return is_decimal(c) || in_ranges(kDigitsBeyondDecimal, c); }
bool is_numeric(char32_t c) {
  const auto kind = category(c);
  return (kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO) ||
         in_ranges(kNumericLetters, c);
}
bool is_lower(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL || in_ranges(kLowerBeyondCategory, c);
}
bool is_upper(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LU || in_ranges(kUpperBeyondCategory, c);
}
bool is_title(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LT; }
bool is_cased(char32_t c) { return is_lower(c) || is_upper(c) || is_title(c); }

bool is_name_character(char32_t c) {
  if (is_word(c)) return true;
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC ||
         kind == UTF8PROC_CATEGORY_PC || c == 0xB7 || c == 0x387;
}

bool is_identifier(std::string_view text) {
  if (text.empty()) return false;
  for (size_t pos = 0; pos < text.size();) {
    const bool first = pos == 0;
    const char32_t c = decode(text, pos);
    const bool starts = c == '_' || is_alpha(c) || category(c) == UTF8PROC_CATEGORY_NL;
    if (starts) continue;
    if (first || !is_name_character(c) || category(c) == UTF8PROC_CATEGORY_NO) return false;
  }
  return true;
}

std::string quote(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char32_t mark = has_single && !has_double ? '"' : '\'';
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  out.reserve(text.size() + 2);
  out.push_back(static_cast<char>(mark));
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = decode(text, pos);
    if (c == mark || c == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if ((c >= ' ' && c < 0x7F) || (c >= 0x7F && is_printable(c)) || c >= kInvalidByte) {
      append_utf8(out, c);
    } else {
      const int digits = c < 0x100 ? 2 : c < 0x10000 ? 4 : 8;
      out += digits == 2 ? "\\x" : digits == 4 ? "\\u" : "\\U";
      for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) out += kHex[(c >> shift) & 15];
    }
  }
  out.push_back(static_cast<char>(mark));
  return out;
}

namespace {

template <typename Predicate>
std::string_view strip_if(std::string_view text, Side side, const Predicate& strips) {
  if (side != Side::kRight) {
    size_t pos = 0;
    while (pos < text.size()) {
      size_t next = pos;
      if (!strips(decode(text, next))) break;
      pos = next;
    }
    text.remove_prefix(pos);
  }
  if (side == Side::kLeft) return text;
  while (!text.empty()) {
    size_t start = text.size() - 1;
    // Back over continuation bytes, as far as they belong to one valid character.
    for (size_t back = 1; back < 4 && start > 0; ++back) {
      if ((static_cast<unsigned char>(text[start]) & 0xC0) != 0x80) break;
      --start;
    }
    size_t next = start;
    char32_t c = decode(text, next);
    if (next != text.size()) {
      start = text.size() - 1;
      next = start;
      c = decode(text, next);
    }
    if (!strips(c)) break;
    text = text.substr(0, start);
  }
  return text;
}

}  // namespace

std::string_view strip_spaces(std::string_view text, Side side) {
  return strip_if(text, side, is_space);
}

std::string_view strip_characters(std::string_view text, std::string_view characters, Side side) {
  return strip_if(text, side, [&](char32_t c) {
    for (size_t pos = 0; pos < characters.size();) {
      if (decode(characters, pos) == c) return true;
    }
    return false;
  });
}

bool has_surrogate(std::string_view text) {
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] == '\xED' && static_cast<unsigned char>(text[i + 1]) >= 0xA0) return true;
  }
  return false;
}

}  // namespace nanovllm::jinja
