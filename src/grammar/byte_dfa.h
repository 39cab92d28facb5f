// Small automata over bytes that are known as a whole: a character of a class, a string's content.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "grammar/char_ranges.h"

namespace nanovllm::grammar {

inline constexpr uint32_t kUnbounded = UINT32_MAX;

// Nothing follows what kAccept accepts: it is the beginning of no other accepted sequence.
struct ByteDfa {
  static constexpr uint16_t kDead = 0xFFFF;
  static constexpr uint16_t kAccept = 0xFFFE;
  static constexpr size_t kMaxStates = 0xFFF0;

  std::array<uint8_t, 256> classes = {};  // byte -> class
  uint32_t num_classes = 1;
  std::vector<uint16_t> next;  // [states, num_classes], state 0 first
  // [states]: 1 where any run of plain characters keeps it alive. Empty: none does.
  std::vector<uint8_t> covers = {};
  // [states]: 1 between characters. Empty: only state 0 is.
  std::vector<uint8_t> is_between = {};
  // [states]: 1 where what was read is accepted, though more may follow. Empty: nowhere.
  std::vector<uint8_t> may_end = {};
  // Bounds of the number of characters, where it is bounded: what is accepted then ends between
  // characters, or with one byte, a closing quote, that belongs to no character.
  bool is_counted = false;
  uint32_t min = 0, max = kUnbounded;
  // [states, min + 1]: characters of the shortest end that has at least so many, with the one that
  // a state is within; kUnbounded: none.
  std::vector<uint32_t> shortest = {};
  uint32_t most_needed = 0;  // characters that an end has where it is shortest, of any state

  uint16_t step(uint16_t state, uint8_t byte) const {
    return next[state * num_classes + classes[byte]];
  }
  size_t num_states() const { return next.size() / num_classes; }
  bool ends(uint32_t state) const { return !may_end.empty() && may_end[state] != 0; }
  size_t bytes() const {  // of memory
    return sizeof(ByteDfa) + next.size() * sizeof(uint16_t) + covers.size() + is_between.size() +
           may_end.size() + shortest.size() * sizeof(uint32_t);
  }
};

// Accepts one of the sequences, of which none is the beginning of another.
ByteDfa make_byte_dfa(std::span<const ByteSequence> sequences);

// A character of a JSON string, in any spelling.
const ByteDfa& any_json_character();

// The characters of a JSON string, each in its canonical spelling, and its closing quote.
const ByteDfa& canonical_string();

// Texts in UTF-8 that contain none of these, at most kMaxExcludedBytes of text that is not empty.
inline constexpr size_t kMaxExcludedBytes = 1024;
ByteDfa text_without(std::span<const std::string> excluded);

// The same but the empty sequence. `dfa` is not counted.
ByteDfa without_empty_text(const ByteDfa& dfa);

// Sets dfa.covers.
void find_covering_states(ByteDfa& dfa);

// Joins classes of bytes: two bytes stay together where `of` has them together too. Returns how
// many classes there are.
uint32_t refine(std::array<uint8_t, 256>& classes, uint32_t num_classes,
                const std::array<uint8_t, 256>& of);

}  // namespace nanovllm::grammar
