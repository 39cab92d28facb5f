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

// Characters whose upper case is more than one, which utf8proc does not have: what Python prints
// for [c for c in map(chr, range(0x110000)) if len(c.upper()) > 1].
// clang-format off
constexpr FullUpper kFullUpper[] = {
    {0x00DF, u"SS"}, {0x0149, u"\u02BCN"}, {0x01F0, u"J\u030C"}, {0x0390, u"\u0399\u0308\u0301"},
    {0x03B0, u"\u03A5\u0308\u0301"}, {0x0587, u"\u0535\u0552"}, {0x1E96, u"H\u0331"},
    {0x1E97, u"T\u0308"}, {0x1E98, u"W\u030A"}, {0x1E99, u"Y\u030A"}, {0x1E9A, u"A\u02BE"},
    {0x1F50, u"\u03A5\u0313"}, {0x1F52, u"\u03A5\u0313\u0300"}, {0x1F54, u"\u03A5\u0313\u0301"},
    {0x1F56, u"\u03A5\u0313\u0342"}, {0x1F80, u"\u1F08\u0399"}, {0x1F81, u"\u1F09\u0399"},
    {0x1F82, u"\u1F0A\u0399"}, {0x1F83, u"\u1F0B\u0399"}, {0x1F84, u"\u1F0C\u0399"},
    {0x1F85, u"\u1F0D\u0399"}, {0x1F86, u"\u1F0E\u0399"}, {0x1F87, u"\u1F0F\u0399"},
    {0x1F88, u"\u1F08\u0399"}, {0x1F89, u"\u1F09\u0399"}, {0x1F8A, u"\u1F0A\u0399"},
    {0x1F8B, u"\u1F0B\u0399"}, {0x1F8C, u"\u1F0C\u0399"}, {0x1F8D, u"\u1F0D\u0399"},
    {0x1F8E, u"\u1F0E\u0399"}, {0x1F8F, u"\u1F0F\u0399"}, {0x1F90, u"\u1F28\u0399"},
    {0x1F91, u"\u1F29\u0399"}, {0x1F92, u"\u1F2A\u0399"}, {0x1F93, u"\u1F2B\u0399"},
    {0x1F94, u"\u1F2C\u0399"}, {0x1F95, u"\u1F2D\u0399"}, {0x1F96, u"\u1F2E\u0399"},
    {0x1F97, u"\u1F2F\u0399"}, {0x1F98, u"\u1F28\u0399"}, {0x1F99, u"\u1F29\u0399"},
    {0x1F9A, u"\u1F2A\u0399"}, {0x1F9B, u"\u1F2B\u0399"}, {0x1F9C, u"\u1F2C\u0399"},
    {0x1F9D, u"\u1F2D\u0399"}, {0x1F9E, u"\u1F2E\u0399"}, {0x1F9F, u"\u1F2F\u0399"},
    {0x1FA0, u"\u1F68\u0399"}, {0x1FA1, u"\u1F69\u0399"}, {0x1FA2, u"\u1F6A\u0399"},
    {0x1FA3, u"\u1F6B\u0399"}, {0x1FA4, u"\u1F6C\u0399"}, {0x1FA5, u"\u1F6D\u0399"},
    {0x1FA6, u"\u1F6E\u0399"}, {0x1FA7, u"\u1F6F\u0399"}, {0x1FA8, u"\u1F68\u0399"},
    {0x1FA9, u"\u1F69\u0399"}, {0x1FAA, u"\u1F6A\u0399"}, {0x1FAB, u"\u1F6B\u0399"},
    {0x1FAC, u"\u1F6C\u0399"}, {0x1FAD, u"\u1F6D\u0399"}, {0x1FAE, u"\u1F6E\u0399"},
    {0x1FAF, u"\u1F6F\u0399"}, {0x1FB2, u"\u1FBA\u0399"}, {0x1FB3, u"\u0391\u0399"},
    {0x1FB4, u"\u0386\u0399"}, {0x1FB6, u"\u0391\u0342"}, {0x1FB7, u"\u0391\u0342\u0399"},
    {0x1FBC, u"\u0391\u0399"}, {0x1FC2, u"\u1FCA\u0399"}, {0x1FC3, u"\u0397\u0399"},
    {0x1FC4, u"\u0389\u0399"}, {0x1FC6, u"\u0397\u0342"}, {0x1FC7, u"\u0397\u0342\u0399"},
    {0x1FCC, u"\u0397\u0399"}, {0x1FD2, u"\u0399\u0308\u0300"}, {0x1FD3, u"\u0399\u0308\u0301"},
    {0x1FD6, u"\u0399\u0342"}, {0x1FD7, u"\u0399\u0308\u0342"}, {0x1FE2, u"\u03A5\u0308\u0300"},
    {0x1FE3, u"\u03A5\u0308\u0301"}, {0x1FE4, u"\u03A1\u0313"}, {0x1FE6, u"\u03A5\u0342"},
    {0x1FE7, u"\u03A5\u0308\u0342"}, {0x1FF2, u"\u1FFA\u0399"}, {0x1FF3, u"\u03A9\u0399"},
    {0x1FF4, u"\u038F\u0399"}, {0x1FF6, u"\u03A9\u0342"}, {0x1FF7, u"\u03A9\u0342\u0399"},
    {0x1FFC, u"\u03A9\u0399"}, {0xFB00, u"FF"}, {0xFB01, u"FI"}, {0xFB02, u"FL"}, {0xFB03, u"FFI"},
    {0xFB04, u"FFL"}, {0xFB05, u"ST"}, {0xFB06, u"ST"}, {0xFB13, u"\u0544\u0546"},
    {0xFB14, u"\u0544\u0535"}, {0xFB15, u"\u0544\u053B"}, {0xFB16, u"\u054E\u0546"},
    {0xFB17, u"\u0544\u053D"},
};
// clang-format on

constexpr uint32_t kIota = 0x399, kIotaBelow = 0x345, kSigma = 0x3A3, kFinalSigma = 0x3C2;

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
  const uint32_t title = simple(utf8proc_totitle, c);
  const char16_t* full = find_full_upper(c);
  if (full == nullptr || (title != c && c != 0xDF)) return append_utf8(out, title);
  append_utf8(out, *full);
  while (*++full != 0) {
    append_utf8(out, *full == kIota ? kIotaBelow : simple(utf8proc_tolower, *full));
  }
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

bool is_cased(uint32_t c) {
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
    } else if (mapping == CaseMapping::kUpper) {
      append_upper(out, c);
    } else if (mapping == CaseMapping::kLower || within_word) {
      append_lower(out, c, text, begin, pos);
    } else {
      append_title(out, c);
    }
    within_word = mapping == CaseMapping::kCapitalized || (c < kInvalidByte && is_cased(c));
  }
  return out;
}

bool is_printable(uint32_t c) {
  const int kind = category(c);
  return c == ' ' || (kind != UTF8PROC_CATEGORY_CN &&
                      (kind < UTF8PROC_CATEGORY_ZS || kind > UTF8PROC_CATEGORY_CO));
}

}  // namespace nanovllm::text
