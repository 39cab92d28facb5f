// The case mappings of Python's str, but for characters whose upper case is several (ß is "SS") or
// depends on what is around them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nanovllm::text {

enum class CaseMapping {
  kUpper,
  kLower,
  kTitle,        // the first letter of each word in title case, the others in lower case
  kWords,        // the same in upper case, words being what spaces, hyphens and brackets part
  kCapitalized,  // the first character in title case, all others in lower case
};

// Bytes that are no UTF-8 stay as they are.
std::string map_case(std::string_view text, CaseMapping mapping);

bool is_printable(uint32_t c);  // str.isprintable(); c <= 0x10FFFF

}  // namespace nanovllm::text
