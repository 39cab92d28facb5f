// Which blocks of the KV cache a sequence has, and what it can take over from others.
//
// Layers that need the same of the past are a group: all of it, or what a window sees. Each group
// has its own block table; all take their blocks from one pool. A group with a window is given room
// for a step's tokens, and gives back what no later token sees. Blocks whose tokens are computed
// are registered: each is the group's block of a node of the TextChain, and can be found there,
// held or free, until it is taken for something else. A sequence continues at the last block
// boundary at which every group has what the next token sees, and the state of recurrent layers is
// kept, if there are any (StatePool).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/block_pool.h"
#include "engine/sequence.h"
#include "engine/state_pool.h"
#include "engine/text_chain.h"

namespace nanovllm {

// All operations are O(1) a block. Not thread-safe.
class BlockManager {
 public:
  // `windows`: of each group, see kv_blocks_for.
  BlockManager(int num_blocks, int block_size, std::vector<int> windows = {0},
               StatePoolSize states = {});
  // Tests inject hash functions that collide.
  BlockManager(int num_blocks, int block_size, TextChain::HashFunction hash,
               std::vector<int> windows = {0}, StatePoolSize states = {});
  BlockManager(const BlockManager&) = delete;

  // Gives a sequence without blocks what the cache holds of its present tokens and, in groups
  // without a window, free blocks for all the others; and what it needs for its states. At least
  // one token is left to compute, and there is room for at least one. Returns false and changes
  // nothing if there are not as many free blocks as all present tokens need (blocks_for), or no
  // room for its states.
  bool allocate(Sequence& sequence);
  // Adds blocks until the first num_tokens tokens have room. Returns false and changes nothing if
  // there are not enough free blocks.
  bool reserve(Sequence& sequence, int num_tokens);
  // Takes back blocks behind the first num_tokens tokens: room for guesses that were wrong.
  void shrink(Sequence& sequence, int num_tokens);
  // Of the first num_tokens tokens, for how many reserve() would find room.
  int num_tokens_with_room(const Sequence& sequence, int num_tokens) const {
    return num_tokens_in(sequence, num_tokens, pool_.num_free());
  }
  // The same where nothing is to be taken that can be found.
  int num_tokens_with_empty_room(const Sequence& sequence, int num_tokens) const {
    return num_tokens_in(sequence, num_tokens, pool_.num_empty());
  }
  // Of its next num_new_tokens, how many a step may compute: fewer where that leaves a state which
  // is to be kept.
  int num_tokens_to_state(const Sequence& sequence, int num_new_tokens) const {
    return states_.num_tokens_to_state(sequence, num_new_tokens);
  }
  // The same where the state at one boundary is to be kept.
  int num_tokens_to_boundary(const Sequence& sequence, int num_new_tokens, int boundary) const {
    return states_.num_tokens_to_boundary(sequence, num_new_tokens, boundary);
  }
  // Tokens of a sequence that does not run which it would not have to compute once `running` has
  // computed what both begin with; 0 = no more than are there by now.
  int num_tokens_to_come(const Sequence& sequence, const Sequence& running) const;
  // Those that it would not have to compute now.
  int num_tokens_found(Sequence& sequence);
  // To be called when its num_computed_tokens has grown by a step that was submitted.
  void advance(Sequence& sequence) { states_.advance(sequence); }
  // Takes all blocks back. Registered ones can still be found until they are used for something
  // else.
  void deallocate(Sequence& sequence);
  // To be called when the KV of the first num_tokens tokens is there to stay: it has been computed,
  // and none of them is a guess. Registers the blocks that they fill, keeps the state behind them
  // if it is to be kept, and gives back the blocks that no later token sees.
  // If another sequence registered the same text first, this sequence takes that block and gives up
  // its own. Steps in flight may still read the old block; none writes to either of the two,
  // because SequenceInput::kv_write_begin keeps steps from writing to registered blocks.
  void register_computed(Sequence& sequence, int num_tokens);
  // Whether steps in flight compute tokens of it whose register_computed() may give blocks back.
  bool may_give_back(const Sequence& sequence) const;

  bool has_states() const { return states_.is_needed(); }
  const StatePool& states() const { return states_; }
  int num_blocks() const { return pool_.num_blocks(); }
  int num_free_blocks() const { return pool_.num_free(); }
  int num_used_blocks() const { return num_blocks() - num_free_blocks(); }
  // Registered ones, used or free.
  int num_cached_blocks() const { return pool_.num_cached(); }
  int block_size() const { return block_size_; }
  // What a sequence of so many tokens must have at a time to be computed.
  int64_t blocks_for(int num_tokens) const;

  // Checks everything here against the sequences that hold blocks: reference counts, free list,
  // hash table, that each group has the blocks that the next token sees and no older ones, that
  // every registered block has the text it is registered for, and the states. Returns an empty
  // string or what is wrong.
  std::string check_integrity(std::span<const Sequence* const> sequences) const;

 private:
  // A row of a block table: the groups' blocks of the same tokens.
  int rows_for(int num_tokens) const { return (num_tokens + block_size_ - 1) / block_size_; }
  int num_rows(const Sequence& sequence) const {
    return static_cast<int>(sequence.block_table.size()) / num_groups_;
  }
  size_t place(int row, int group) const { return static_cast<size_t>(row) * num_groups_ + group; }
  // The first row that the token at `position` sees.
  int first_row(int group, int position) const {
    const int window = windows_[group];
    return window == 0 ? 0 : std::max(0, position - window + 1) / block_size_;
  }
  std::span<const int32_t> tokens_of_row(const Sequence& sequence, int row) const {
    return std::span(sequence.token_ids)
        .subspan(static_cast<size_t>(row) * block_size_, block_size_);
  }
  // A state is found only in front of a token.
  int num_shareable_tokens(const Sequence& sequence) const {
    const auto num_known = static_cast<int>(sequence.token_ids.size());
    const int most = has_states() ? std::min(num_known, sequence.num_tokens() - 1) : num_known;
    return std::min(most, sequence.num_cacheable_tokens);
  }
  // Where the sequence continues behind `prefix`. If all its tokens are cached, the last one is
  // computed again: only that gives its logits.
  int first_to_compute(const Sequence& sequence, const PrefixChain& prefix) const {
    return std::min(prefix.num_blocks * block_size_, sequence.num_tokens() - 1);
  }

  int num_tokens_in(const Sequence& sequence, int num_tokens, int num_free) const;
  PrefixChain find_prefix(Sequence& sequence);
  bool take_over(Sequence& sequence, const PrefixChain& prefix);
  void add_row(Sequence& sequence);
  int take_block();
  void register_full_rows(Sequence& sequence, int num_tokens);
  void register_row(Sequence& sequence, int row, int node);
  bool is_seen_at_parting(const Sequence& sequence, int group, int row) const;
  void give_back_unseen(Sequence& sequence, int num_tokens);
  std::string check_contents() const;
  std::string check_sequence(const Sequence& sequence) const;
  std::string check_entry(const Sequence& sequence, int row, int group, int node) const;

  const int block_size_;
  const std::vector<int> windows_;  // [num_groups_]
  const int num_groups_;
  const int num_windows_;  // groups with one
  BlockPool pool_;
  TextChain chain_;  // the group behind the others' is the states'
  StatePool states_;
  std::vector<int> runs_;  // [num_groups_], of find_prefix()
};

}  // namespace nanovllm
