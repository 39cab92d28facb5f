// How unicode.cc and unicode_case.cc ask utf8proc and the tables about one code point.
#pragma once

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "text/jinja/unicode.h"
#include "text/jinja/unicode_tables.h"

namespace nanovllm::jinja {

inline utf8proc_category_t category(char32_t c) {
  return c < kInvalidByte ? utf8proc_category(static_cast<utf8proc_int32_t>(c))
                          : UTF8PROC_CATEGORY_CN;
}

template <size_t N>
bool in_ranges(const CodeRange (&ranges)[N], char32_t c) {
  const auto* range =
      std::lower_bound(std::begin(ranges), std::end(ranges), c,
                       [](const CodeRange& r, char32_t value) { return r.last < value; });
  return range != std::end(ranges) && range->first <= c;
}

}  // namespace nanovllm::jinja
