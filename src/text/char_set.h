// Sets of characters as PCRE2 spells them, with the meaning they have for Oniguruma.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm::text {

// A union of what fits inside one [...] and of further one-character expressions.
struct CharSet {
  std::string items;                // the inside of [...]
  std::vector<std::string> others;  // e.g. what negation leaves

  void add(uint32_t first, uint32_t last);
  void add(const CharSet& set);
  std::string regex() const;  // matches one character of the set
  CharSet negated() const;
  CharSet intersected(const CharSet& set) const;
};

CharSet space_set();  // \s
CharSet digit_set();  // \d
CharSet hex_set();    // \h
// \w, which for Oniguruma has six characters more when it does not stand in [...].
CharSet word_set(bool in_class);

// \p{name}: general categories, scripts, binary properties and POSIX names. The name is not checked
// beyond its characters; PCRE2 refuses what it does not know. Nothing for a name with other
// characters.
std::optional<CharSet> property_set(std::string_view name, bool in_class);
// [:name:]
std::optional<CharSet> posix_set(std::string_view name);

}  // namespace nanovllm::text
