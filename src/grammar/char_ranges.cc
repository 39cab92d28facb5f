#include "grammar/char_ranges.h"

#include <algorithm>
#include <string_view>

#include "text/utf8.h"

namespace nanovllm::grammar {
namespace {

using text::CodePointRange;

constexpr uint32_t kFirstSurrogate = 0xD800;
constexpr uint32_t kLastSurrogate = 0xDFFF;
constexpr std::string_view kShortEscapes = "\"\\\b\f\n\r\t";
constexpr std::string_view kShortNames = "\"\\bfnrt";

ByteStep step(uint8_t first, uint8_t last) { return {{{{first, last}}}, 1}; }
ByteStep step(char c) { return step(static_cast<uint8_t>(c), static_cast<uint8_t>(c)); }

// Hexadecimal digits of the values first to last.
ByteStep hex_step(uint32_t first, uint32_t last) {
  ByteStep digits{};
  const auto add = [&](uint32_t from, uint32_t to, uint32_t begin, char base) {
    from = std::max(from, begin);
    if (from > to) return;
    digits.ranges[digits.count++] = {static_cast<uint8_t>(base + from - begin),
                                     static_cast<uint8_t>(base + to - begin)};
  };
  add(first, std::min(last, 9u), 0, '0');
  add(first, last, 10, 'a');
  add(first, last, 10, 'A');
  return digits;
}

// Splits first to last so that the bytes of each piece are ranges of their own.
void append_utf8_ranges(uint32_t first, uint32_t last, std::vector<ByteSequence>& out) {
  for (const uint32_t end : {0x7Fu, 0x7FFu, 0xFFFFu}) {
    if (first <= end && last > end) {
      append_utf8_ranges(first, end, out);
      append_utf8_ranges(end + 1, last, out);
      return;
    }
  }
  for (int bits = 6; bits <= 18 && last > 0x7F; bits += 6) {
    const uint32_t low = (1u << bits) - 1;
    if ((first & ~low) == (last & ~low)) break;  // they differ in the bytes behind only
    if ((first & low) != 0) {
      append_utf8_ranges(first, first | low, out);
      append_utf8_ranges((first | low) + 1, last, out);
      return;
    }
    if ((last & low) != low) {
      append_utf8_ranges(first, (last & ~low) - 1, out);
      append_utf8_ranges(last & ~low, last, out);
      return;
    }
  }
  std::string from, to;
  text::append_utf8(from, first);
  text::append_utf8(to, last);
  ByteSequence sequence;
  for (size_t i = 0; i < from.size(); ++i) {
    sequence.push_back(step(static_cast<uint8_t>(from[i]), static_cast<uint8_t>(to[i])));
  }
  out.push_back(std::move(sequence));
}

void append_text(const CharRanges& set, std::vector<ByteSequence>& out) {
  static const CharRanges kScalars = {{0, kFirstSurrogate - 1},
                                      {kLastSurrogate + 1, kLastCharacter}};
  const CharRanges scalars = set.intersected(kScalars);
  for (const CodePointRange range : scalars.ranges()) {
    append_utf8_ranges(range.first, range.last, out);
  }
}

// \uXXXX for first to last of the same value but for the digits from `digit` on.
void append_hex(uint32_t first, uint32_t last, const ByteSequence& before,
                std::vector<ByteSequence>& out, int bits = 12) {
  if (bits < 0) {
    out.push_back(before);
    return;
  }
  const uint32_t from = first >> bits & 15, to = last >> bits & 15, low = (1u << bits) - 1;
  const auto descend = [&](uint32_t a, uint32_t b, uint32_t low_first, uint32_t low_last) {
    if (a > b) return;
    ByteSequence longer = before;
    longer.push_back(hex_step(a, b));
    append_hex(low_first, low_last, longer, out, bits - 4);
  };
  if (from == to) return descend(from, to, first & low, last & low);
  const bool is_first_whole = (first & low) == 0, is_last_whole = (last & low) == low;
  if (!is_first_whole) descend(from, from, first & low, low);
  descend(is_first_whole ? from : from + 1, is_last_whole ? to : to - 1, 0, low);
  if (!is_last_whole) descend(to, to, 0, last & low);
}

void append_unicode_escapes(const CharRanges& set, std::vector<ByteSequence>& out) {
  const ByteSequence start = {step('\\'), step('u')};
  for (const CodePointRange range : set.ranges()) {
    const auto add = [&](uint32_t first, uint32_t last) {
      first = std::max(first, range.first);
      last = std::min(last, range.last);
      if (first <= last) append_hex(first, last, start, out);
    };
    add(0, kFirstSurrogate - 1);
    add(kLastSurrogate + 1, 0xFFFF);
  }
  // Pairs of surrogates, when all that they stand for is in the set.
  if (!set.contains(CharRanges{{0x10000, kLastCharacter}})) return;
  ByteSequence pair = start;
  const auto extend = [&pair](std::initializer_list<ByteStep> steps) {
    pair.insert(pair.end(), steps);
  };
  extend({hex_step(13, 13), hex_step(8, 11), hex_step(0, 15), hex_step(0, 15), step('\\'),
          step('u'), hex_step(13, 13), hex_step(12, 15), hex_step(0, 15), hex_step(0, 15)});
  out.push_back(pair);
}

}  // namespace

CharRanges::CharRanges(std::initializer_list<CodePointRange> ranges) {
  for (const CodePointRange range : ranges) add(range.first, range.last);
  this->ranges();  // sorted at once, so that threads may share what is constant
}

void CharRanges::add(uint32_t first, uint32_t last) {
  ranges_.push_back({first, last});
  is_sorted_ = false;
}

void CharRanges::add(const CharRanges& other) {
  for (const CodePointRange range : other.ranges()) add(range.first, range.last);
}

const std::vector<CodePointRange>& CharRanges::ranges() const {
  if (is_sorted_) return ranges_;
  std::ranges::sort(ranges_, {}, &CodePointRange::first);
  std::vector<CodePointRange> joined;
  for (const CodePointRange range : ranges_) {
    if (!joined.empty() && range.first <= joined.back().last + 1) {
      joined.back().last = std::max(joined.back().last, range.last);
    } else {
      joined.push_back(range);
    }
  }
  ranges_ = std::move(joined);
  is_sorted_ = true;
  return ranges_;
}

CharRanges CharRanges::negated() const {
  CharRanges rest;
  uint32_t from = 0;
  for (const CodePointRange range : ranges()) {
    if (range.first > from) rest.add(from, range.first - 1);
    from = range.last + 1;
  }
  if (from <= kLastCharacter) rest.add(from, kLastCharacter);
  return rest;
}

CharRanges CharRanges::intersected(const CharRanges& other) const {
  CharRanges both;
  auto a = ranges().begin();
  auto b = other.ranges().begin();
  while (a != ranges().end() && b != other.ranges().end()) {
    const uint32_t first = std::max(a->first, b->first), last = std::min(a->last, b->last);
    if (first <= last) both.add(first, last);
    if (a->last < b->last) {
      ++a;
    } else {
      ++b;
    }
  }
  return both;
}

const CharRanges& plain_characters() {
  static const CharRanges kPlain = {{0x20, 0x21},
                                    {0x23, 0x5B},
                                    {0x5D, kFirstSurrogate - 1},
                                    {kLastSurrogate + 1, kLastCharacter}};
  return kPlain;
}

void append_character(std::string& out, uint32_t c, Spelling spelling) {
  if (spelling == Spelling::kText || plain_characters().contains(c)) {
    text::append_utf8(out, c);
    return;
  }
  out.push_back('\\');
  const size_t at = c < 0x80 ? kShortEscapes.find(static_cast<char>(c)) : std::string::npos;
  if (at != std::string_view::npos) {
    out.push_back(kShortNames[at]);
    return;
  }
  constexpr std::string_view kDigits = "0123456789abcdef";
  out.push_back('u');
  for (int bits = 12; bits >= 0; bits -= 4) out.push_back(kDigits[c >> bits & 15]);
}

std::string spell_text(std::string_view utf8, Spelling spelling) {
  std::string out;
  for (size_t at = 0; at < utf8.size();) {
    append_character(out, text::next_character(utf8, at), spelling);
  }
  return out;
}

std::vector<ByteSequence> spell(const CharRanges& set, Spelling spelling) {
  std::vector<ByteSequence> out;
  if (spelling == Spelling::kText) {
    append_text(set, out);
    return out;
  }
  append_text(set.intersected(plain_characters()), out);
  const auto append = [&out](std::string_view bytes) {
    ByteSequence& sequence = out.emplace_back();
    for (const char byte : bytes) sequence.push_back(step(byte));
  };
  for (uint32_t c = 0; c <= '\\'; ++c) {
    if (!set.contains(c) || plain_characters().contains(c)) continue;
    if (spelling == Spelling::kJson &&
        kShortEscapes.find(static_cast<char>(c)) == std::string::npos) {
      continue;  // of \uXXXX below
    }
    std::string bytes;
    append_character(bytes, c, Spelling::kCanonical);
    append(bytes);
  }
  if (spelling == Spelling::kJson) {
    if (set.contains('/')) append("\\/");
    append_unicode_escapes(set, out);
  }
  return out;
}

}  // namespace nanovllm::grammar
