// The states of recurrent layers: which sequence has which slots and which log (see ForwardBatch),
// and the states that are kept for texts that begin alike.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/kept_states.h"
#include "engine/sequence.h"
#include "engine/text_chain.h"
#include "runner/runner.h"

namespace nanovllm {

// A running sequence has the slot that it reads, the one that it writes when its next chunk opens,
// and a log. As a slot that was written never changes, keeping a state means to hold its slot:
// sequences that go on from it read it there. The kept ones make way for those that run.
//
// A state can be kept at boundaries: where a block and a chunk end. It is there once a step has
// ended behind the boundary, but no more than a chunk behind it. Kept are
// - the state at the last boundary below a prompt's end: the next turn of a chat continues there;
// - at the last one up to which a text was found whose state was not there, for it may be a
//   beginning that many have;
// - at each multiple of about 8,192 tokens;
// - at the last one that a running sequence has passed, for itself if it is preempted, and for
//   who continues its text.
//
// Nothing allocates. Not thread-safe.
class StatePool {
 public:
  // The slot of a node's state is the node's block of the chain's group `group`.
  StatePool(StatePoolSize size, int block_size, TextChain& chain, int group);

  // false: the model has no recurrent layers. Then nobody needs a state, and allocate() gives none.
  bool is_needed() const { return size_.num_slots > 0; }
  const StatePoolSize& size() const { return size_; }
  // For one more sequence.
  bool has_room() const { return !is_needed() || !free_logs_.empty(); }
  // Whether a text that continues that of the node can go on there.
  bool has_state(int node) const {
    return !is_needed() || chain_.block(node, group_) != TextChain::kNone;
  }
  // Sequences that can run at once, and those that have states now.
  int num_sequences() const { return size_.num_logs; }
  int num_sequences_now() const { return num_sequences() - static_cast<int>(free_logs_.size()); }
  // The last boundary within so many tokens.
  int boundary_within(int num_tokens) const { return num_tokens / boundary_ * boundary_; }

  // Gives a sequence what it needs to go on behind the text of a node that has a state (kNone = at
  // its beginning). There must be room.
  void allocate(Sequence& sequence, const PrefixChain& prefix);
  // To be called when the sequence's num_computed_tokens has grown: where the new tokens open a
  // chunk, the state of the one before is in the other slot.
  void advance(Sequence& sequence);
  // Of its next num_new_tokens, how many a step may compute so that no state is missed that is to
  // be kept for others.
  int num_tokens_to_state(const Sequence& sequence, int num_new_tokens) const;
  // The same for the state at one boundary.
  int num_tokens_to_boundary(const Sequence& sequence, int num_new_tokens, int boundary) const;
  // To be called when a step is collected that ended behind num_tokens tokens, whose full blocks
  // are registered: keeps the state that it left, if it is one to be kept.
  void keep(Sequence& sequence, int num_tokens);
  // What a node's text has lost its blocks, its state is no longer of use.
  void forget(int node);
  void deallocate(Sequence& sequence);

  int num_kept() const { return kept_.num_kept(); }
  int num_free_slots() const { return static_cast<int>(free_slots_.size()); }

  // Checks who holds slots and logs, and which texts the kept states are of. Returns an empty
  // string or what is wrong.
  std::string check_integrity(std::span<const Sequence* const> sequences) const;

 private:
  int32_t take(bool for_new_sequence);
  void drop(int32_t slot);
  void make_next_writable(Sequence& sequence);
  bool is_for_others(const Sequence& sequence, int num_tokens) const;
  int next_for_others(const Sequence& sequence) const;
  int num_tokens_saved(int node) const;
  std::string check_kept(std::vector<int>& holders) const;

  const StatePoolSize size_;
  const int block_size_;  // tokens
  const int boundary_;    // likewise, as all of these
  const int grid_;
  TextChain& chain_;
  const int group_;
  KeptStates kept_;           // an owner is a log
  std::vector<int> holders_;  // of each slot: sequences, and one if its state is kept
  std::vector<int32_t> free_slots_, free_logs_;
};

}  // namespace nanovllm
