// Character properties as Hugging Face's `tokenizers` sees them: Unicode 16, whatever older version
// the distribution's libraries know.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace nanovllm::text {

// What the split patterns of language models tell apart.
enum class CharClass : uint8_t {
  kLetter,   // \p{L}
  kNumber,   // \p{N}
  kSpace,    // \s without the two below
  kNewline,  // \r and \n
  kOther,
};

// General category, a utf8proc_category_t; c <= 0x10FFFF.
int category(uint32_t c);

bool is_mark(uint32_t c);         // \p{M}
bool is_number(uint32_t c);       // \p{N}
bool is_punctuation(uint32_t c);  // \p{P}
bool is_word(uint32_t c);         // \w of Rust's regex
CharClass class_of_non_ascii(uint32_t c);

// White_Space
inline bool is_space(uint32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

constexpr CharClass class_of_ascii(uint32_t c) {
  if (c == '\r' || c == '\n') return CharClass::kNewline;
  if (c == ' ' || (c >= 9 && c <= 13)) return CharClass::kSpace;
  if (c >= '0' && c <= '9') return CharClass::kNumber;
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return CharClass::kLetter;
  return CharClass::kOther;
}

inline constexpr std::array<CharClass, 128> kAsciiClasses = [] {
  std::array<CharClass, 128> classes{};
  for (uint32_t c = 0; c < 128; ++c) classes[c] = class_of_ascii(c);
  return classes;
}();

struct CategoryRange {
  uint32_t first, last;
  int category;
};

// The characters that came with Unicode 15, 15.1 and 16, ascending. Libraries older than that take
// them for unassigned.
std::span<const CategoryRange> recent_characters();

}  // namespace nanovllm::text
