// The states of recurrent layers: which sequence has which slots and which log (see ForwardBatch).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/sequence.h"
#include "runner/runner.h"

namespace nanovllm {

// A running sequence has the slot that it reads, the one that it writes when its next chunk opens,
// and a log. All operations are O(1) and never allocate. Not thread-safe.
class StatePool {
 public:
  explicit StatePool(StatePoolSize size);

  // false: the model has no recurrent layers. Then nobody needs a state, and allocate() gives none.
  bool is_needed() const { return num_slots_ > 0; }
  // For one more sequence.
  bool has_room() const { return !is_needed() || (free_slots_.size() >= 2 && !free_logs_.empty()); }
  // Gives a sequence that has computed nothing what it needs, for which there must be room.
  void allocate(Sequence& sequence);
  // To be called when the sequence's num_computed_tokens has grown: where the new tokens open a
  // chunk, the state of the one before is in the other slot.
  void advance(Sequence& sequence) const;
  void deallocate(Sequence& sequence);

  int num_free_slots() const { return static_cast<int>(free_slots_.size()); }

  // Checks that all slots and logs are free or one sequence's. Returns an empty string or what is
  // wrong.
  std::string check_integrity(std::span<const Sequence* const> sequences) const;

 private:
  const int num_slots_, num_logs_;
  const int chunk_;  // tokens
  std::vector<int32_t> free_slots_, free_logs_;
};

}  // namespace nanovllm
