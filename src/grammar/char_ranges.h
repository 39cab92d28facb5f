// Sets of characters, and the byte sequences that stand for them in a text or in a JSON string.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "text/code_point_ranges.h"

namespace nanovllm::grammar {

inline constexpr uint32_t kLastCharacter = 0x10FFFF;

// A set of code points. Surrogates may be in it and stand for no text.
class CharRanges {
 public:
  CharRanges() = default;
  CharRanges(std::initializer_list<text::CodePointRange> ranges);
  static CharRanges all() { return {{0, kLastCharacter}}; }

  void add(uint32_t first, uint32_t last);
  void add(const CharRanges& other);
  CharRanges negated() const;
  CharRanges without(const CharRanges& other) const { return intersected(other.negated()); }
  CharRanges intersected(const CharRanges& other) const;
  bool contains(uint32_t c) const { return text::contains(ranges(), c); }
  bool contains(const CharRanges& other) const { return other.without(*this).empty(); }
  bool empty() const { return ranges().empty(); }
  // Ascending, apart and not adjacent.
  const std::vector<text::CodePointRange>& ranges() const;

 private:
  mutable std::vector<text::CodePointRange> ranges_;
  mutable bool is_sorted_ = true;
};

struct ByteRange {
  uint8_t first, last;
};

// One step of a sequence: up to three ranges, as hexadecimal digits have.
struct ByteStep {
  std::array<ByteRange, 3> ranges;
  uint8_t count;
};
using ByteSequence = std::vector<ByteStep>;

// How characters are written.
enum class Spelling {
  kText,       // UTF-8
  kCanonical,  // in a JSON string, each in one way only: escaped where it has to be
  kJson,       // in a JSON string, in every way
};

// No sequence is the beginning of another, and none stands for two characters.
std::vector<ByteSequence> spell(const CharRanges& set, Spelling spelling);
// The same for one character: a text. `spelling` is not kJson.
void append_character(std::string& out, uint32_t c, Spelling spelling);
std::string spell_text(std::string_view utf8, Spelling spelling);

// What stands in a JSON string as it is.
const CharRanges& plain_characters();

}  // namespace nanovllm::grammar
