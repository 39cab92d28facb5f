// The case mappings of Python's str, Unicode's full ones: one code point can become three.
#include <array>

#include "text/jinja/unicode_category.h"

namespace nanovllm::jinja {
namespace {

bool is_case_ignorable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return in_ranges(kIgnorableBeyondCategory, c);
  }
}

const FullCase* find_full_case(char32_t c) {
  const auto* entry = std::lower_bound(std::begin(kFullCase), std::end(kFullCase), c,
                                       [](const FullCase& e, char32_t v) { return e.from < v; });
  return entry != std::end(kFullCase) && entry->from == c ? entry : nullptr;
}

void append_all(std::string& out, const char32_t* characters) {
  for (; *characters != 0; ++characters) append_utf8(out, *characters);
}

void append_upper(std::string& out, char32_t c) {
  if (const FullCase* full = find_full_case(c)) return append_all(out, full->upper);
  append_utf8(out, c >= kInvalidByte
                       ? c
                       : static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
}

void append_title(std::string& out, char32_t c) {
  if (const FullCase* full = find_full_case(c)) return append_all(out, full->title);
  append_utf8(out, c >= kInvalidByte
                       ? c
                       : static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
}

constexpr char32_t kSigma = 0x3A3;
constexpr char32_t kDottedCapitalI = 0x130;

// Greek sigma has a form of its own at the end of a word: preceded by a cased letter and followed
// by none, case-ignorable characters skipped on both sides (Unicode 3.13, Final_Sigma).
bool is_final_sigma(std::string_view text, size_t start, size_t end) {
  bool after_letter = false;
  for (size_t pos = start; pos > 0;) {
    do {
      --pos;
    } while (pos > 0 && (static_cast<unsigned char>(text[pos]) & 0xC0) == 0x80);
    size_t at = pos;
    const char32_t c = decode(text, at);
    if (is_case_ignorable(c)) continue;
    after_letter = is_cased(c);
    break;
  }
  if (!after_letter) return false;
  for (size_t pos = end; pos < text.size();) {
    const char32_t c = decode(text, pos);
    if (!is_case_ignorable(c)) return !is_cased(c);
  }
  return true;
}

// The code point at [start, end) of text in lower case; its neighbours decide about sigma.
void append_lower(std::string& out, char32_t c, std::string_view text, size_t start, size_t end) {
  if (c == kSigma) return append_utf8(out, is_final_sigma(text, start, end) ? 0x3C2 : 0x3C3);
  if (c == kDottedCapitalI) return append_all(out, U"i\u0307");
  append_utf8(out, c >= kInvalidByte
                       ? c
                       : static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

char ascii_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }
char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

}  // namespace

bool is_lower_text(std::string_view text) {
  bool has_cased = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = decode(text, pos);
    if (is_upper(c) || is_title(c)) return false;
    has_cased |= is_lower(c);
  }
  return has_cased;
}

bool is_upper_text(std::string_view text) {
  bool has_cased = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = decode(text, pos);
    if (is_lower(c) || is_title(c)) return false;
    has_cased |= is_upper(c);
  }
  return has_cased;
}

std::string to_upper(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    if (static_cast<unsigned char>(text[pos]) < 0x80) {
      out.push_back(ascii_upper(text[pos++]));
    } else {
      append_upper(out, decode(text, pos));
    }
  }
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    if (static_cast<unsigned char>(text[pos]) < 0x80) {
      out.push_back(ascii_lower(text[pos++]));
    } else {
      const size_t start = pos;
      const char32_t c = decode(text, pos);
      append_lower(out, c, text, start, pos);
    }
  }
  return out;
}

std::string to_title(std::string_view text) {
  std::string out;
  bool within_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const char32_t c = decode(text, pos);
    if (within_word) {
      append_lower(out, c, text, start, pos);
    } else {
      append_title(out, c);
    }
    within_word = is_cased(c);
  }
  return out;
}

std::string to_capitalized(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const char32_t c = decode(text, pos);
    if (start == 0) {
      append_title(out, c);
    } else {
      append_lower(out, c, text, start, pos);
    }
  }
  return out;
}

std::string to_swapped_case(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const size_t start = pos;
    const char32_t c = decode(text, pos);
    if (is_upper(c)) {
      append_lower(out, c, text, start, pos);
    } else if (is_lower(c)) {
      append_upper(out, c);
    } else {
      append_utf8(out, c);
    }
  }
  return out;
}

std::string to_case_folded(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = decode(text, pos);
    std::array<utf8proc_int32_t, 8> folded{};
    int last_class = UTF8PROC_BOUNDCLASS_START;
    const utf8proc_ssize_t count =
        c >= kInvalidByte ? 0
                          : utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), folded.data(),
                                                    folded.size(), UTF8PROC_CASEFOLD, &last_class);
    if (count <= 0 || count > static_cast<utf8proc_ssize_t>(folded.size())) {
      append_utf8(out, c);
      continue;
    }
    for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(out, static_cast<char32_t>(folded[i]));
  }
  return out;
}

}  // namespace nanovllm::jinja
