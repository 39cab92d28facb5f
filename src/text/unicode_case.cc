#include "text/unicode_case.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "text/unicode.h"
#include "text/utf8.h"

namespace nanovllm::text {
namespace {

struct FullUpper {
  char16_t from;
  const char16_t* to;
};

// Characters outside polytonic Greek whose upper case is more than one, which utf8proc does not
// have.
// clang-format off
constexpr FullUpper kFullUpper[] = {
    {0x00DF, u"SS"}, {0x0149, u"\u02BCN"}, {0x01F0, u"J\u030C"}, {0x0390, u"\u0399\u0308\u0301"},
    {0x03B0, u"\u03A5\u0308\u0301"}, {0x0587, u"\u0535\u0552"}, {0x1E96, u"H\u0331"},
    {0x1E97, u"T\u0308"}, {0x1E98, u"W\u030A"}, {0x1E99, u"Y\u030A"}, {0x1E9A, u"A\u02BE"},
    {0xFB00, u"FF"}, {0xFB01, u"FI"}, {0xFB02, u"FL"}, {0xFB03, u"FFI"}, {0xFB04, u"FFL"},
    {0xFB05, u"ST"}, {0xFB06, u"ST"}, {0xFB13, u"\u0544\u0546"}, {0xFB14, u"\u0544\u0535"},
    {0xFB15, u"\u0544\u053B"}, {0xFB16, u"\u054E\u0546"}, {0xFB17, u"\u0544\u053D"},
};
// clang-format on

constexpr uint32_t kSigma = 0x3A3, kFinalSigma = 0x3C2;

const char16_t* find_full_upper(uint32_t c) {
  if (c < kFullUpper[0].from) return nullptr;
  const auto* entry = std::lower_bound(std::begin(kFullUpper), std::end(kFullUpper), c,
                                       [](const FullUpper& e, uint32_t v) { return e.from < v; });
  return entry != std::end(kFullUpper) && entry->from == c ? entry->to : nullptr;
}

uint32_t simple(utf8proc_int32_t (*map)(utf8proc_int32_t), uint32_t c) {
  return static_cast<uint32_t>(map(static_cast<utf8proc_int32_t>(c)));
}

void append_upper(std::string& out, uint32_t c) {
  const char16_t* full = find_full_upper(c);
  if (full == nullptr) return append_utf8(out, simple(utf8proc_toupper, c));
  for (; *full != 0; ++full) append_utf8(out, *full);
}

void append_title(std::string& out, uint32_t c) {
  const char16_t* full = find_full_upper(c);
  append_utf8(out, full == nullptr ? simple(utf8proc_totitle, c) : *full);
  if (full == nullptr) return;
  while (*++full != 0) append_utf8(out, simple(utf8proc_tolower, *full));
}

// c at [begin, end) of text in lower case: sigma has a form of its own at the end of a word.
void append_lower(std::string& out, uint32_t c, std::string_view text, size_t begin, size_t end) {
  if (c == 0x130) {
    out += "i\u0307";
  } else if (c != kSigma) {
    append_utf8(out, simple(utf8proc_tolower, c));
  } else {
    size_t before = begin == 0 ? 0 : previous_utf8(text, begin);
    const bool ends_word = begin > 0 && is_letter(next_character(text, before)) &&
                           (end == text.size() || !is_letter(next_character(text, end)));
    append_utf8(out, ends_word ? kFinalSigma : simple(utf8proc_tolower, c));
  }
}

bool parts_words(uint32_t c) {
  return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
}

bool is_cased(uint32_t c) {
  if (c >= kInvalidByte) return false;
  const int kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LT;
}

}  // namespace

std::string map_case(std::string_view text, CaseMapping mapping) {
  std::string out;
  out.reserve(text.size());
  bool within_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const uint32_t c = next_character(text, pos);
    if (c >= kInvalidByte) {
      out += text[begin];
    } else if (mapping == CaseMapping::kUpper || (mapping == CaseMapping::kWords && !within_word)) {
      append_upper(out, c);
    } else if (mapping == CaseMapping::kLower || within_word) {
      append_lower(out, c, text, begin, pos);
    } else {
      append_title(out, c);
    }
    within_word = mapping == CaseMapping::kCapitalized ||
                  (mapping == CaseMapping::kWords ? !parts_words(c) : is_cased(c));
  }
  return out;
}

bool is_printable(uint32_t c) {
  const int kind = category(c);
  return c == ' ' || (kind != UTF8PROC_CATEGORY_CN &&
                      (kind < UTF8PROC_CATEGORY_ZS || kind > UTF8PROC_CATEGORY_CO));
}

}  // namespace nanovllm::text
