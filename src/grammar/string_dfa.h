// The strings that satisfy several regular languages at once, or some and not others, as one
// automaton over their canonical spelling in JSON.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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

  bool contains(std::string_view text) const;  // UTF-8
  // Null: no string is in it.
  Automaton* automaton() const { return automaton_.get(); }

 private:
  explicit StringLanguage(const std::function<NodeId(Syntax&)>& build);
  std::unique_ptr<Syntax> syntax_;
  std::unique_ptr<Automaton> automaton_;
};

// Those whose membership in the languages satisfies `accepts`, one bit a language. `all` has all
// strings in that spelling: JSON's, of which the automaton reads the closing quote too, or those of
// text_without(). None: there are no such strings. Throws Error(kUnsupported), which begins with
// `where`, when it would be too large.
std::optional<ByteDfa> make_string_dfa(std::span<const StringLanguage* const> languages,
                                       const std::function<bool(uint32_t)>& accepts,
                                       LengthBounds length, const std::string& where,
                                       const ByteDfa& all = canonical_string());

// Which memberships there are at all.
std::vector<uint32_t> memberships(std::span<const StringLanguage* const> languages,
                                  const std::string& where);

}  // namespace nanovllm::grammar
