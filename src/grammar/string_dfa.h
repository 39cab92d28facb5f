// The strings that satisfy several regular languages at once, or some and not others, as one
// automaton over their canonical spelling in JSON.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/syntax.h"

namespace nanovllm::grammar {

struct LengthBounds {
  uint32_t min = 0, max = kUnbounded;  // characters
  bool is_bounded() const { return min > 0 || max != kUnbounded; }
};

// A regular language of strings, in their canonical spelling without quotes, or as they are.
class StringLanguage {
 public:
  // Throws what compile_regex() throws; `where` is what errors begin with.
  static StringLanguage of_pattern(std::string_view pattern, const std::string& where,
                                   Spelling spelling = Spelling::kCanonical);
  // The whole string matches it.
  static StringLanguage of_regex(std::string_view regex, Spelling spelling = Spelling::kCanonical);
  static StringLanguage of_length(LengthBounds length);
  // Those that contain none of the texts, as they are.
  static StringLanguage without(const std::vector<std::string>& texts);
  static StringLanguage of_texts(const std::vector<std::string>& texts);

  // `text` is UTF-8. Throws Error(kUnsupported) when the language is too large to tell.
  bool contains(std::string_view text) const;
  // Null: no string is in it.
  Automaton* automaton() const { return automaton_.get(); }

 private:
  explicit StringLanguage(const std::function<NodeId(Syntax&)>& build);
  std::unique_ptr<Syntax> syntax_;
  std::unique_ptr<Automaton> automaton_;
};

// The strings that the automaton, which reads a closing quote and counts nothing, accepts, where
// there are so many at most.
std::optional<std::vector<std::string>> few_texts(const ByteDfa& dfa, size_t most);

// All languages at once: what a string's beginning leads to in each. A string's membership has one
// bit a language.
class StringProduct {
 public:
  // At most 31 languages, which outlive it. `strings` has all strings in their spelling: JSON's, of
  // which the automaton reads the closing quote too, or those of text_without(). Throws
  // Error(kUnsupported), which begins with `where`, when it would be too large.
  StringProduct(std::span<const StringLanguage* const> languages, std::string where,
                ByteDfa strings = canonical_string());

  size_t size() const { return states_.size(); }
  // Which there are at all.
  std::set<uint32_t> memberships() const;
  // The strings whose membership `accepts`. None: there are no such strings. Throws as above.
  std::optional<ByteDfa> accepting(const std::function<bool(uint32_t)>& accepts,
                                   LengthBounds length) const;

 private:
  uint16_t next(const std::vector<StateId>& state, uint8_t byte);
  uint16_t find(const std::vector<StateId>& state);
  bool is_between(size_t state) const {
    const StateId outer = (*states_[state])[0];
    return strings_.is_between.empty() ? outer == 0 : strings_.is_between[outer] != 0;
  }
  uint32_t membership(size_t state) const;  // of what leads to a state between characters
  bool add_length(ByteDfa& dfa, LengthBounds length) const;

  const std::vector<const StringLanguage*> languages_;
  const std::string where_;
  const ByteDfa strings_;
  ByteDfa dfa_;  // that accepts every string
  std::map<std::vector<StateId>, uint16_t> ids_;
  std::vector<const std::vector<StateId>*> states_;
};

}  // namespace nanovllm::grammar
