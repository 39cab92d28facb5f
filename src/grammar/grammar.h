// Grammars that an output must follow: JSON Schemas, regular expressions, GBNF and tags as
// automata, whose states are numbers that never change, and the masks of tokens that their states
// allow.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/tokenizer.h"

namespace nanovllm {

namespace grammar {
struct Parts;
class TokenIndex;
class MaskCache;
class Syntax;
}  // namespace grammar

// A state of one grammar. Nobody rolls it back: drafts, forks and lost steps keep the number they
// had.
using GrammarState = uint32_t;

// Immutable for those who use it, and thread-safe: what states lead to is found out as it is asked
// for, under a lock, and read without one from then on. Who asks for what follows a guess
// (is_guess) outgrows no automaton: where that takes too much, it is told so of this guess alone.
class Grammar {
 public:
  ~Grammar();

  GrammarState start() const;
  // Behind further bytes of text, which may end within a character.
  GrammarState advance(GrammarState state, std::string_view bytes, bool is_guess = false) const;
  // Behind one more token. One that stands for no text is taken where a structural tag names it.
  GrammarState advance(GrammarState state, int32_t token, bool is_guess = false) const;
  // Whether the text may end here.
  bool is_accepting(GrammarState state) const;
  // Whether some token may follow: mask() has one. Costs far less where tokens of one byte do.
  bool has_next(GrammarState state) const;
  // Text that must follow, up to `most` bytes of it, which may end within a character: as far as
  // there is one way to go on and the text can't end. No marks are in it. Asked for as a guess.
  std::string forced_text(GrammarState state, size_t most) const;
  // Whether nothing may follow, for the text is wrong already or the automaton is outgrown.
  bool is_dead(GrammarState state) const;
  // Whether states became too many for the grammar's bounds of memory and work: a dead state that
  // is nobody's mistake. The sentence says what to do.
  bool is_outgrown(GrammarState state) const;
  static std::string outgrown_message();

  // One bit a token of the vocabulary, from the lowest bit of the first word on: the tokens that
  // may follow. Tokens that end the text are not among them. The same object for as long as it is
  // kept. All zero where one of the tokens leads to an outgrown state; null where that is so for a
  // guess alone.
  std::shared_ptr<const std::vector<uint32_t>> mask(GrammarState state,
                                                    bool is_guess = false) const;
  // The same into `words`, num_mask_words() at least; those behind them are cleared.
  void fill_mask(GrammarState state, std::span<uint32_t> words) const;
  size_t num_mask_words() const;
  // A state with the same mask that may end where this one may: equal ones for many states.
  GrammarState mask_state(GrammarState state, bool is_guess = false) const;
  // What is read of a token: its text, or a symbol of one that stands for none; empty for what is
  // never read.
  std::string_view bytes_of(int32_t token) const;
  // Whether a token stands for text, as special ones don't.
  bool is_text(int32_t token) const;

  // What the user should know: annotations that are not enforced, alternatives that may overlap.
  const std::vector<std::string>& notes() const;
  size_t num_states() const;
  size_t bytes() const;  // of memory, at most
  // Whether so much of the bound is used up that who begins a text had better have a new one.
  bool is_worn() const;

 private:
  friend class GrammarCompiler;
  explicit Grammar(std::unique_ptr<grammar::Parts> parts);
  std::unique_ptr<grammar::Parts> parts_;
};

struct JsonSchemaOptions {
  // No white space but one blank behind each comma and colon, or none there either.
  bool disable_any_whitespace = false;
  // A regular expression of what may stand between JSON's tokens.
  std::optional<std::string> whitespace_pattern;
  // Objects have the properties that they name, unless they say what others are.
  bool disable_additional_properties = false;
  bool operator==(const JsonSchemaOptions&) const = default;
};

// Compiles grammars for one tokenizer, which must outlive it. Thread-safe. What it needs to know of
// the tokenizer it finds out for the first grammar: where nobody asks for one it costs nothing.
// Equal grammars that are in use are one object, and so are those that were asked for lately: their
// states and masks are there already, and what was refused lately is refused at once. Others are
// compiled on a thread of low priority, so that those that compute tokens go first. Copies share
// what they know.
//
// All compile functions throw Error(kInvalidArgument) with what is wrong and where: the path in a
// schema, the position in a regular expression, the rule of a grammar; Error(kUnsupported) for what
// would narrow the result and can't be enforced.
class GrammarCompiler {
 public:
  explicit GrammarCompiler(const Tokenizer& tokenizer);
  explicit GrammarCompiler(std::shared_ptr<const grammar::TokenIndex> index);
  // One that compiles nothing: its functions return null for what is not known yet.
  GrammarCompiler known() const;

  std::shared_ptr<const Grammar> json_schema(std::string_view schema,
                                             const JsonSchemaOptions& options = {}) const;
  // Any JSON object.
  std::shared_ptr<const Grammar> json_object(const JsonSchemaOptions& options = {}) const;
  // The whole output matches it, by code points.
  std::shared_ptr<const Grammar> regex(std::string_view pattern) const;
  // One of the texts.
  std::shared_ptr<const Grammar> choice(const std::vector<std::string>& texts) const;
  // llama.cpp's GBNF; it begins with the rule `root`.
  std::shared_ptr<const Grammar> gbnf(std::string_view text) const;
  // xgrammar's JSON: {"type": "structural_tag", "format": {...}}, or {"structures", "triggers"}.
  std::shared_ptr<const Grammar> structural_tag(std::string_view json,
                                                const JsonSchemaOptions& options = {}) const;

  const grammar::TokenIndex& tokens() const { return *index(); }

 private:
  using Build = std::function<uint32_t(grammar::Syntax&, std::vector<std::string>& notes)>;
  // `what` is what errors call it.
  std::shared_ptr<const Grammar> compile(std::string key, std::string_view what,
                                         const Build& build) const;
  std::shared_ptr<const Grammar> make(std::string_view what, const Build& build) const;
  struct Known;

  const std::shared_ptr<const grammar::TokenIndex>& index() const;

  const Tokenizer* const tokenizer_;  // null: the index was given
  std::shared_ptr<grammar::MaskCache> masks_;
  std::shared_ptr<Known> known_;
  bool compiles_ = true;
};

}  // namespace nanovllm
