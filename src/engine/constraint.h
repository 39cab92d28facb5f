// What a completion may say next where a request names its tokens or a grammar: the masks of its
// draws.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/thinking_budget.h"
#include "grammar/grammar.h"
#include "nanovllm/sampling_params.h"

namespace nanovllm {

// What a request allows from beginning to end.
struct ConstraintRules {
  // Null = allowed_token_ids alone.
  std::shared_ptr<const Grammar> grammar = {};
  // allowed_token_ids as SamplingRow::allowed; empty = all. [(vocab_size + 31) / 32]
  std::vector<uint32_t> allowed = {};
  // What ends the output: these may be drawn where the grammar's text may end, and else only where
  // it names the token itself. They are never text.
  std::vector<int32_t> end_ids = {};
  // A thought may come before the text, if it begins with this token; -1 = none may.
  int32_t thought_id = -1;
  // What ends one, byte by byte, where that is several tokens: a model may write it in others, and
  // what follows with it. Empty = its ids do. Values of 0 to 255.
  std::vector<int32_t> thought_end_bytes = {};
  // What may not end the output within a thought, as the text is still to come: the end ids but for
  // those that end the thought itself.
  std::vector<int32_t> banned_in_thought = {};
  int vocab_size = 0;
  // Its masks are the grammar's, and end ids where the text may end.
  bool takes_all_text = false;
  // Of no other rules that an engine ever has, as long as they differ. 0 = there are too many.
  uint64_t number = 0;

  bool allows_same(const ConstraintRules& other) const;
  // Whether the output ends with this token, if it was drawn in the text.
  bool is_end(int32_t id) const;
  // Whether a token can be drawn as far as ids alone are concerned.
  bool is_listed(int32_t id) const;
};

// Equal rules of requests that live at the same time are one object, so that their masks are the
// same for the device too.
class ConstraintTable {
 public:
  // The rules of a request's parameters; null where they allow everything.
  std::shared_ptr<const ConstraintRules> rules_of(const SamplingParams& params,
                                                  std::shared_ptr<const Grammar> grammar,
                                                  int vocab_size,
                                                  const std::vector<int32_t>& eos_token_ids);

 private:
  std::shared_ptr<const ConstraintRules> intern(ConstraintRules rules);

  std::vector<std::weak_ptr<const ConstraintRules>> known_;
  uint64_t num_numbers_ = 0;
};

// Which tokens a draw may give, as a number and as words. The rules must outlive it.
struct TokenMask {
  const ConstraintRules* rules = nullptr;  // null = all tokens
  GrammarState state = 0;                  // as Grammar::mask_state() has it
  // Draws that the grammar does not bind: rules->allowed is the mask, or there is none.
  bool is_of_ids_alone = false;
  // The end ids wait, as long as anything else may be drawn.
  bool is_before_min_tokens = false;
  bool may_begin_thought = false;
  bool is_guess = false;  // of a row behind a draft

  // SamplingRow::allowed_key
  uint64_t key() const;
  // [(vocab_size + 31) / 32]. May be called on any thread. False: it is a guess that takes too
  // much, and no bit is set.
  bool fill(std::span<uint32_t> words) const;
};

// Where a completion is in its text. A copy goes on by itself, so that drafts need no way back.
class Constraint {
 public:
  // `rules` and `tags` must live longer. With tags, a thought that is open at the prompt's end, or
  // that the output begins with, comes before the text: the grammar does not bind it.
  Constraint(const ConstraintRules& rules, const std::optional<ThinkingTags>& tags);

  // One more token of the output, which does not end it.
  void append(int32_t id);
  // To be called before a draft is appended: what follows is no reason to end the request.
  void guess() { is_guess_ = true; }
  // Whether a token may follow, as far as the grammar is concerned. One with which the automaton is
  // outgrown may: that is not the token's fault.
  bool admits(int32_t id) const;
  // Whether the automaton is outgrown here, or a guess takes too much.
  bool is_outgrown() const;
  // Whether the grammar binds the next token, and whether it did the one before.
  bool binds() const { return rules_->grammar != nullptr && place_ != Place::kThought; }
  // Of the next token, beside its mask.
  std::span<const int32_t> banned_ids() const {
    return is_in_thought() ? std::span(rules_->banned_in_thought) : std::span<const int32_t>();
  }
  bool is_in_text() const { return rules_->grammar != nullptr && place_ == Place::kText; }
  // Text that must follow, up to `most` bytes of it; empty where there is a choice.
  std::string forced_text(size_t most) const;
  // Whether what the next token may be depends on the last `num_pending` ones.
  bool depends_on(int num_pending) const;
  // Whether the text is complete here.
  bool may_end() const;
  TokenMask mask(bool is_before_min_tokens) const;

  // Whether nothing can follow: the text is complete and no token can end it, or it can't go on.
  // Makes no mask if it can do without.
  bool is_stuck() const;
  // Whether mask() has no token but those that are banned for other reasons.
  bool is_mask_empty(bool is_before_min_tokens = false,
                     std::span<const int32_t> banned_ids = {}) const;
  // Why nothing follows, where the text isn't complete.
  std::string why_stuck() const;

 private:
  enum class Place { kBeginning, kThought, kText };
  bool is_in_thought() const { return rules_->grammar != nullptr && place_ == Place::kThought; }
  void append_thought(int32_t id);

  const ConstraintRules* rules_;
  Place place_ = Place::kText;
  GrammarState state_ = 0;
  std::optional<TagFinder> thought_end_;
  bool is_guess_ = false;
};

}  // namespace nanovllm
