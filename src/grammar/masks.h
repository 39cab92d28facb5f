// Masks of tokens: which may follow in a state of a grammar. Those made last are kept.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/token_index.h"

namespace nanovllm::grammar {

// Stacks, and frames behind them, that are looked at for one mask: some 50 ms of work, more than an
// object with 10,000 properties or a union of 10,000 patterns needs.
inline constexpr size_t kMaxMaskWork = 300'000;
// For one that may not be needed.
inline constexpr size_t kMaxGuessWork = kMaxMaskWork / 10;

// Sets the bits of the tokens that may follow, and clears all others. False: the automaton is
// outgrown, or it is a guess that takes more than guesses may, and no bit is set, for what is known
// would be less than what may follow.
bool make_mask(Automaton& automaton, StateId state, const TokenIndex& index, MaskWords& words,
               size_t max_work = kMaxMaskWork, bool is_guess = false);

// The masks used last, of all grammars together; thread-safe.
class MaskCache {
 public:
  explicit MaskCache(size_t max_bytes) : max_bytes_(max_bytes) {}
  using Mask = std::shared_ptr<const MaskWords>;
  Mask find(uint64_t grammar, StateId state);  // null: it is not there
  void add(uint64_t grammar, StateId state, Mask mask);
  uint64_t next_grammar() { return next_grammar_.fetch_add(1); }
  size_t bytes() const;
  static constexpr size_t kEntryBytes = 128;  // that a mask takes beside its words, about

 private:
  struct Entry {
    uint64_t grammar;
    StateId state;
    Mask mask;
  };
  struct Key {
    uint64_t grammar;
    StateId state;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    size_t operator()(const Key& key) const {
      return (key.grammar * 0x9E3779B97F4A7C15u ^ key.state) * 0x9E3779B97F4A7C15u >> 16;
    }
  };
  const size_t max_bytes_;
  std::atomic<uint64_t> next_grammar_ = 0;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // used last first
  std::unordered_map<Key, std::list<Entry>::iterator, Hash> places_;
  size_t bytes_ = 0;
};

}  // namespace nanovllm::grammar
