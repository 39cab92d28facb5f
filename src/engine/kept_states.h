// Which states of recurrent layers are kept for texts that begin alike, and which goes first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nanovllm {

// By what it saves whoever goes on from it: the tokens behind the last state before it that is kept
// of its text. When it is kept or used, a state is worth what the last one that had to go was worth
// (the clock), these tokens, and kWorthOfUse besides; the one that is worth least goes first
// (GreedyDual, Young 1994). So one that saves much outlives many that save little, but not for good
// if nobody uses it; and of those that save little, the last one used stays. A state that a running
// sequence just passes makes way for the next one that it passes, and for sequences that begin to
// run before all others do. All operations are O(1), but for first_to_go(), which is O(slots). None
// allocates. Not thread-safe.
class KeptStates {
 public:
  static constexpr int kNone = -1;
  static constexpr int kWorthOfUse = 2048;  // tokens: a few turns of an agent

  // An owner is a running sequence: 0 .. num_owners - 1.
  KeptStates(int num_slots, int num_owners);

  // Keeps the state in a slot, which has taken in the text that ends in a node of the TextChain.
  // `owner`: of a state that it just passes, of which it must have none; kNone = for others.
  void keep(int slot, int node, int num_tokens_saved, int owner = kNone);
  // Somebody goes on from it, or would have.
  void use(int slot, int num_tokens_saved);
  // The owner has ended, and what it passed last is kept for others.
  void settle(int owner);
  void remove(int slot);
  // The same for one that has to go.
  void evict(int slot);

  // kNone: it has no state that is kept.
  int node(int slot) const { return kept_[slot].node; }
  // Whether a running sequence just passes it.
  bool is_passed(int slot) const { return kept_[slot].owner != kNone; }
  int slot_passed_by(int owner) const { return passed_[owner]; }
  // Of those that nobody else has, by the number of holders of each slot; kNone if there is none.
  int first_to_go(std::span<const int> holders, bool for_new_sequence) const;
  int num_kept() const { return num_kept_; }

 private:
  struct Kept {
    int node = kNone;
    int owner = kNone;
    int num_tokens_saved = 0;
    int64_t value = 0;  // tokens
  };

  std::vector<Kept> kept_;   // by slot
  std::vector<int> passed_;  // by owner: slot
  int64_t clock_ = 0;        // what the last one that had to go was worth
  int num_kept_ = 0;
};

}  // namespace nanovllm
