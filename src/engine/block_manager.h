// The KV cache's blocks: who holds which, and which contents can be shared.
//
// A block whose tokens are all computed may be registered under a hash chained over the whole text
// before it. Registered content has an identity that is never used twice; a block is found only
// if its own tokens are equal and its parent is the very content found before it, so a colliding
// hash can cost a look, never serve another text's KV. Blocks nobody holds are kept in one list in
// the order they will be taken: those without content first, then least recently used, and of one
// sequence the end of its text before the beginning.
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
  // Hash of a block's tokens that continues `parent` (the salt's own hash at the beginning).
  using HashFunction = std::function<uint64_t(uint64_t parent, std::span<const int32_t> token_ids)>;

  BlockManager(int num_blocks, int block_size);
  // Tests inject hash functions that collide.
  BlockManager(int num_blocks, int block_size, HashFunction hash);

  // Gives a sequence without blocks all it needs for its present tokens: first what the cache holds
  // of them, then free blocks. At least one token is left to compute. False, and nothing changed,
  // when there are too few.
  bool allocate(Sequence& sequence);
  // Adds blocks until the first num_tokens tokens have room. False, and nothing changed, when there
  // are too few.
  bool reserve(Sequence& sequence, int num_tokens);
  // Takes all blocks back; what is registered stays findable until it is evicted.
  void deallocate(Sequence& sequence);
  // Registers the blocks that the first num_tokens tokens fill. Their KV must have been computed.
  // Where another sequence registered the same text first, its block takes the place of the own
  // one, which steps in flight may still read, but none may write to.
  void register_computed(Sequence& sequence, int num_tokens);

  int num_blocks() const { return static_cast<int>(blocks_.size()) - 1; }
  int num_free_blocks() const { return num_free_; }
  int num_used_blocks() const { return num_blocks() - num_free_; }
  int num_cached_blocks() const { return num_registered_; }  // used or free
  int block_size() const { return block_size_; }
  int blocks_for(int num_tokens) const { return (num_tokens + block_size_ - 1) / block_size_; }

  // Proves the books against the sequences that hold blocks: reference counts, free list, hash
  // table, and that every registered block holds the text it is registered for. Empty, or what is
  // wrong.
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
  PrefixChain empty_chain(const Sequence& sequence) const;
  int find_block(uint64_t hash, const Sequence& sequence, std::span<const int32_t> token_ids,
                 uint64_t parent_id) const;
  void match_prefix(Sequence& sequence) const;
  void register_block(int block, uint64_t hash, const Sequence& sequence,
                      std::span<const int32_t> token_ids, uint64_t parent_id);
  int take_free_block();
  void hold(int block);
  void drop(int block);
  void unregister(int block);
  void link(int block, int before);
  void unlink(int block);
  std::string check_free_list() const;
  std::string check_hash_table() const;
  std::string check_sequence(const Sequence& sequence) const;

  const int block_size_;
  const HashFunction hash_;
  std::vector<Block> blocks_;       // one more than there are: the last anchors the free list
  std::vector<int32_t> token_ids_;  // [num_blocks, block_size]; valid for registered blocks
  std::vector<int> buckets_;        // first block of each hash bucket, or -1; a power of two
  int num_free_ = 0;
  int num_registered_ = 0;
  uint64_t next_content_id_ = 1;
};

}  // namespace nanovllm
