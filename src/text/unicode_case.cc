#include "text/unicode_case.h"

#include <utf8proc.h>

#include "text/unicode.h"
#include "text/unicode_versions.h"
#include "text/utf8.h"

namespace nanovllm::text {
namespace {

void append_cased(std::string& out, uint32_t c, bool is_title) {
  if (c == 0xDF) {
    out += is_title ? "Ss" : "SS";
  } else {
    const auto cased = is_title ? utf8proc_totitle : utf8proc_toupper;
    append_utf8(out, static_cast<uint32_t>(cased(static_cast<utf8proc_int32_t>(c))));
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
    } else if (mapping == CaseMapping::kLower || (within_word && mapping != CaseMapping::kUpper)) {
      append_lower(out, c);
    } else {
      append_cased(out, c, mapping == CaseMapping::kTitle || mapping == CaseMapping::kCapitalized);
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
