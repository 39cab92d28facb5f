// The KV cache's blocks: who holds which, and which contents can be shared.
//
// A block whose tokens are all computed may be registered under a hash that is chained over the
// whole text before it. Registered content gets a number (content_id) that is never used twice. A
// block is found only if its own tokens are equal and its parent_id is the content_id of the block
// found just before it: a hash collision costs a comparison but never gives the KV of another text.
// Blocks that nobody holds are free, whether they are registered or not. They are in one list in
// the order in which they will be taken: those without content first, then the least recently used;
// of one sequence, the last block first.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/sequence.h"

namespace nanovllm {

// All operations are O(1) a block. Not thread-safe.
class BlockManager {
 public:
  // Hash of a block's tokens that continues `parent`, the hash of the block before it (of the first
  // block: Sequence::cache_salt).
  using HashFunction = std::function<uint64_t(uint64_t parent, std::span<const int32_t> token_ids)>;

  BlockManager(int num_blocks, int block_size);
  // Tests inject hash functions that collide.
  BlockManager(int num_blocks, int block_size, HashFunction hash);

  // Gives a sequence without blocks all that it needs for its present tokens: first those that the
  // cache holds, then free blocks. At least one token is left to compute. Returns false and changes
  // nothing if there are not enough free blocks.
  bool allocate(Sequence& sequence);
  // Adds blocks until the first num_tokens tokens have room. Returns false and changes nothing if
  // there are not enough free blocks.
  bool reserve(Sequence& sequence, int num_tokens);
  // Takes all blocks back. Registered ones can still be found until they are used for something
  // else.
  void deallocate(Sequence& sequence);
  // Registers the blocks that the first num_tokens tokens fill. Their KV must have been computed.
  // If another sequence registered the same text first, this sequence takes that block and gives up
  // its own. Steps in flight may still read the old block; none writes to either of the two,
  // because SequenceInput::kv_write_begin keeps steps from writing to registered blocks.
  void register_computed(Sequence& sequence, int num_tokens);

  int num_blocks() const { return static_cast<int>(blocks_.size()) - 1; }
  int num_free_blocks() const { return num_free_; }
  int num_used_blocks() const { return num_blocks() - num_free_; }
  // Registered ones, used or free.
  int num_cached_blocks() const { return num_registered_; }
  int block_size() const { return block_size_; }
  int blocks_for(int num_tokens) const { return (num_tokens + block_size_ - 1) / block_size_; }

  // Checks everything here against the sequences that hold blocks: reference counts, free list,
  // hash table, and that every registered block has the text it is registered for. Returns an empty
  // string or what is wrong.
  std::string check_integrity(std::span<const Sequence* const> sequences) const;

 private:
  struct Block {
    int ref_count = 0;
    int prev = 0, next = 0;   // in the free list while ref_count is 0
    int next_in_bucket = -1;  // in the hash table while content_id is not 0
    uint64_t content_id = 0;  // 0 = not registered
    uint64_t parent_id = 0;   // content that this one continues; 0 = the beginning of a text
    uint64_t salt = 0;
    uint64_t hash = 0;
  };

  std::span<const int32_t> tokens_of(int block) const {
    return std::span(token_ids_).subspan(static_cast<size_t>(block) * block_size_, block_size_);
  }
  int find_block(uint64_t hash, const Sequence& sequence, std::span<const int32_t> token_ids,
                 uint64_t parent_id) const;
  void match_prefix(Sequence& sequence) const;
  void register_block(int block, uint64_t hash, const Sequence& sequence,
                      std::span<const int32_t> token_ids, uint64_t parent_id);
  int take_free_block();
  void hold(int block);  // one more sequence has it
  void drop(int block);  // one less; without any it is free
  void unregister(int block);
  void link(int block, int before);  // into the free list
  void unlink(int block);            // out of it
  std::string check_free_list() const;
  std::string check_hash_table() const;
  std::string check_sequence(const Sequence& sequence) const;

  const int block_size_;
  const HashFunction hash_;
  std::vector<Block> blocks_;       // and one more: the head of the free list, which is a ring
  std::vector<int32_t> token_ids_;  // [num_blocks, block_size]; valid for registered blocks
  std::vector<int> buckets_;        // [a power of two] first block of each hash bucket, or -1
  int num_free_ = 0;
  int num_registered_ = 0;
  uint64_t next_content_id_ = 1;
};

}  // namespace nanovllm
