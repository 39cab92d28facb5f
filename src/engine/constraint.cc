#include "engine/constraint.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace nanovllm {
namespace {

// A key is a number of rules, the kind of a mask, and a state.
constexpr int kStateBits = 32;
constexpr int kKindBits = 3;
constexpr uint64_t kMaxRules = uint64_t{1} << (64 - kStateBits - kKindBits);

bool has_bit(std::span<const uint32_t> words, int32_t id) {
  return (words[id / 32] >> (id % 32) & 1) != 0;
}

bool is_any(std::span<const uint32_t> words) {
  return std::ranges::any_of(words, [](uint32_t word) { return word != 0; });
}

bool contains(std::span<const int32_t> ids, int32_t id) {
  return std::ranges::find(ids, id) != ids.end();
}

int32_t value(char byte) { return static_cast<uint8_t>(byte); }

// Empty: some token is not known. A blank at the beginning may be the tokenizer's own.
std::vector<int32_t> bytes_of_tag(const std::vector<int32_t>& ids, const Grammar& grammar) {
  std::vector<int32_t> bytes;
  for (const int32_t id : ids) {
    const std::string_view of_token = grammar.bytes_of(id);
    if (of_token.empty()) return {};
    for (const char byte : of_token) bytes.push_back(value(byte));
  }
  if (bytes.size() > 1 && bytes.front() == ' ') bytes.erase(bytes.begin());
  return bytes;
}

}  // namespace

bool ConstraintRules::allows_same(const ConstraintRules& other) const {
  return grammar == other.grammar && thought_id == other.thought_id &&
         thought_end_bytes == other.thought_end_bytes &&
         banned_in_thought == other.banned_in_thought && vocab_size == other.vocab_size &&
         end_ids == other.end_ids && allowed == other.allowed;
}

bool ConstraintRules::is_end(int32_t id) const { return contains(end_ids, id); }

bool ConstraintRules::is_listed(int32_t id) const {
  return id >= 0 && id < vocab_size && (allowed.empty() || has_bit(allowed, id));
}

std::shared_ptr<const ConstraintRules> ConstraintTable::rules_of(
    const SamplingParams& params, std::shared_ptr<const Grammar> grammar, int vocab_size,
    const std::vector<int32_t>& eos_token_ids) {
  if (grammar == nullptr && !params.allowed_token_ids) return nullptr;
  ConstraintRules rules;
  rules.vocab_size = vocab_size;
  if (params.allowed_token_ids) {
    rules.allowed.resize((vocab_size + 31) / 32);
    for (const int32_t id : *params.allowed_token_ids) rules.allowed[id / 32] |= 1u << id % 32;
  }
  rules.grammar = std::move(grammar);
  if (rules.grammar == nullptr) return intern(std::move(rules));
  rules.end_ids = params.stop_token_ids;
  if (!params.ignore_eos) {
    rules.end_ids.insert(rules.end_ids.end(), eos_token_ids.begin(), eos_token_ids.end());
  }
  std::ranges::sort(rules.end_ids);
  rules.end_ids.erase(std::unique(rules.end_ids.begin(), rules.end_ids.end()), rules.end_ids.end());
  const auto is_text = [&](int32_t id) { return rules.grammar->is_text(id); };
  rules.takes_all_text =
      rules.allowed.empty() && std::ranges::none_of(rules.end_ids, is_text) &&
      rules.grammar->num_mask_words() <= (static_cast<size_t>(vocab_size) + 31) / 32;
  const auto& tags = params.thinking_tags;
  if (tags && tags->num_prompt_tokens < 0 && tags->start_ids.size() == 1) {
    rules.thought_id = tags->start_ids.front();
  }
  if (tags && tags->end_ids.size() > 1) {
    rules.thought_end_bytes = bytes_of_tag(tags->end_ids, *rules.grammar);
  }
  if (tags && !tags->end_ids.empty()) {
    std::ranges::copy_if(rules.end_ids, std::back_inserter(rules.banned_in_thought),
                         [&](int32_t id) { return !contains(tags->end_ids, id); });
  }
  return intern(std::move(rules));
}

std::shared_ptr<const ConstraintRules> ConstraintTable::intern(ConstraintRules rules) {
  std::erase_if(known_, [](const auto& known) { return known.expired(); });
  for (const auto& known : known_) {
    auto same = known.lock();
    if (same != nullptr && same->allows_same(rules)) return same;
  }
  // Numbers are not used again: somebody may have words under their keys still.
  rules.number = num_numbers_ + 1 < kMaxRules ? ++num_numbers_ : 0;
  auto made = std::make_shared<const ConstraintRules>(std::move(rules));
  known_.push_back(made);
  return made;
}

uint64_t TokenMask::key() const {
  if (rules == nullptr || rules->number == 0) return 0;
  const uint64_t kind =
      is_of_ids_alone ? 4 : (is_before_min_tokens ? 1 : 0) + (may_begin_thought ? 2 : 0);
  return (rules->number << kKindBits | kind) << kStateBits | state;
}

bool TokenMask::fill(std::span<uint32_t> words) const {
  if (is_of_ids_alone) {
    std::ranges::copy(rules->allowed, words.begin());
    return true;
  }
  const auto text = rules->grammar->mask(state, is_guess);
  if (text == nullptr) {
    std::ranges::fill(words, 0);
    return false;
  }
  // Either vocabulary may be the larger one, a checkpoint's or its tokenizer's.
  const auto known = std::span(*text).first(std::min(text->size(), words.size()));
  std::fill(std::ranges::copy(known, words.begin()).out, words.end(), 0);
  if (rules->vocab_size % 32 != 0) words.back() &= (1u << rules->vocab_size % 32) - 1;
  for (const int32_t id : rules->end_ids) {
    const bool is_known = id >= 0 && id < rules->vocab_size;
    if (is_known && rules->grammar->is_text(id)) words[id / 32] &= ~(1u << id % 32);
  }
  for (size_t i = 0; i < rules->allowed.size(); ++i) words[i] &= rules->allowed[i];
  const auto open = [&](int32_t id) {
    if (rules->is_listed(id)) words[id / 32] |= 1u << id % 32;
  };
  if (may_begin_thought) open(rules->thought_id);
  if (!rules->grammar->is_accepting(state)) return true;
  if (is_before_min_tokens && is_any(words)) return true;
  for (const int32_t id : rules->end_ids) open(id);
  return true;
}

Constraint::Constraint(const ConstraintRules& rules, const std::optional<ThinkingTags>& tags)
    : rules_(&rules) {
  if (rules.grammar == nullptr) return;
  state_ = rules.grammar->start();
  if (!tags || tags->end_ids.empty()) return;
  thought_end_.emplace(rules.thought_end_bytes.empty() ? tags->end_ids : rules.thought_end_bytes);
  if (tags->num_prompt_tokens >= 0) {
    place_ = Place::kThought;
  } else if (rules.thought_id >= 0) {
    place_ = Place::kBeginning;
  }
}

void Constraint::append(int32_t id) {
  if (rules_->grammar == nullptr) return;
  if (place_ == Place::kThought) return append_thought(id);
  if (std::exchange(place_, Place::kText) == Place::kBeginning && id == rules_->thought_id) {
    place_ = Place::kThought;
    return;
  }
  state_ = rules_->grammar->advance(state_, id, is_guess_);
}

void Constraint::append_thought(int32_t id) {
  if (rules_->thought_end_bytes.empty()) {
    if (thought_end_->append(id)) place_ = Place::kText;
    return;
  }
  const std::string_view bytes = rules_->grammar->bytes_of(id);
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (!thought_end_->append(value(bytes[i]))) continue;
    place_ = Place::kText;
    // What the token has behind the tag was drawn before the grammar bound anything.
    const GrammarState next = rules_->grammar->advance(state_, bytes.substr(i + 1), is_guess_);
    if (!rules_->grammar->is_dead(next) || rules_->grammar->is_outgrown(next)) state_ = next;
    return;
  }
}

bool Constraint::admits(int32_t id) const {
  if (!binds()) return !contains(banned_ids(), id);
  if (place_ == Place::kBeginning && id == rules_->thought_id) return true;
  if (rules_->is_end(id) && (may_end() || rules_->grammar->is_text(id))) return may_end();
  const GrammarState next = rules_->grammar->advance(state_, id, is_guess_);
  return !rules_->grammar->is_dead(next) || rules_->grammar->is_outgrown(next);
}

bool Constraint::is_outgrown() const { return binds() && rules_->grammar->is_outgrown(state_); }

bool Constraint::depends_on(int num_pending) const {
  if (rules_->grammar == nullptr) return false;
  // Of a tag's bytes one token may have any number.
  if (place_ != Place::kThought || !rules_->thought_end_bytes.empty()) return num_pending > 0;
  return thought_end_->num_missing() <= static_cast<size_t>(num_pending);
}

std::string Constraint::forced_text(size_t most) const {
  const bool may_think = place_ == Place::kBeginning;
  return binds() && !may_think ? rules_->grammar->forced_text(state_, most) : "";
}

bool Constraint::may_end() const { return binds() && rules_->grammar->is_accepting(state_); }

TokenMask Constraint::mask(bool is_before_min_tokens) const {
  // What comes behind a draft that ends the output is drawn for nobody.
  if (!binds() || rules_->grammar->is_dead(state_)) {
    if (rules_->allowed.empty()) return {};
    return {.rules = rules_, .is_of_ids_alone = true};
  }
  return {.rules = rules_,
          .state = rules_->grammar->mask_state(state_, is_guess_),
          .is_before_min_tokens = is_before_min_tokens,
          .may_begin_thought = place_ == Place::kBeginning,
          .is_guess = is_guess_};
}

bool Constraint::is_stuck() const {
  if (!binds()) return false;
  const auto is_listed = [&](int32_t id) { return rules_->is_listed(id); };
  if (may_end() && std::ranges::any_of(rules_->end_ids, is_listed)) return false;
  if (place_ == Place::kBeginning && is_listed(rules_->thought_id)) return false;
  if (rules_->grammar->is_dead(state_)) return true;
  return rules_->takes_all_text ? !rules_->grammar->has_next(state_) : is_mask_empty();
}

bool Constraint::is_mask_empty(bool is_before_min_tokens,
                               std::span<const int32_t> banned_ids) const {
  const TokenMask its_mask = mask(is_before_min_tokens);
  if (its_mask.rules == nullptr) return false;
  std::vector<uint32_t> words((rules_->vocab_size + 31) / 32);
  its_mask.fill(words);
  for (const int32_t id : banned_ids) {
    if (id < rules_->vocab_size) words[id / 32] &= ~(1u << id % 32);
  }
  return !is_any(words);
}

std::string Constraint::why_stuck() const {
  const Grammar& grammar = *rules_->grammar;
  if (grammar.is_outgrown(state_)) return Grammar::outgrown_message();
  if (grammar.is_dead(state_)) return "the output no longer follows its grammar";
  for (int32_t id = 0; id < rules_->vocab_size; ++id) {
    if (grammar.is_outgrown(grammar.advance(state_, id))) return Grammar::outgrown_message();
  }
  return "the grammar leaves no token to draw: none of the vocabulary that is allowed goes on "
         "with this text";
}

}  // namespace nanovllm
