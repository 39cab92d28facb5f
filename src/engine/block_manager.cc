#include "engine/block_manager.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"

namespace nanovllm {

namespace {

uint64_t xxhash(uint64_t parent, std::span<const int32_t> token_ids) {
  return XXH3_64bits_withSeed(token_ids.data(), token_ids.size_bytes(), parent);
}

}  // namespace

BlockManager::BlockManager(int num_blocks, int block_size)
    : BlockManager(num_blocks, block_size, xxhash) {}

BlockManager::BlockManager(int num_blocks, int block_size, HashFunction hash)
    : block_size_(block_size),
      hash_(std::move(hash)),
      blocks_(static_cast<size_t>(num_blocks) + 1),
      token_ids_(static_cast<size_t>(num_blocks) * block_size),
      buckets_(std::bit_ceil(static_cast<size_t>(num_blocks) + 1), -1) {
  NANOVLLM_CHECK(num_blocks > 0 && block_size > 0);
  const int anchor = num_blocks;
  blocks_[anchor].prev = blocks_[anchor].next = anchor;
  for (int block = 0; block < num_blocks; ++block) link(block, anchor);
}

bool BlockManager::allocate(Sequence& sequence) {
  NANOVLLM_CHECK(sequence.block_table.empty());
  sequence.block_table.reserve(blocks_for(sequence.num_tokens()));  // nothing below can throw
  if (sequence.reads_prefix_cache) match_prefix(sequence);
  const auto num_hits = static_cast<int>(sequence.block_table.size());
  const auto num_free_hits =
      static_cast<int>(std::count_if(sequence.block_table.begin(), sequence.block_table.end(),
                                     [this](int block) { return blocks_[block].ref_count == 0; }));
  if (num_free_ - num_free_hits < blocks_for(sequence.num_tokens()) - num_hits) {
    sequence.block_table.clear();
    sequence.chain = {};
    return false;
  }
  for (const int block : sequence.block_table) hold(block);
  reserve(sequence, sequence.num_tokens());
  // The last token is computed again where all of them are cached: only that gives its logits.
  sequence.num_computed_tokens = std::min(num_hits * block_size_, sequence.num_tokens() - 1);
  return true;
}

bool BlockManager::reserve(Sequence& sequence, int num_tokens) {
  const auto num_held = static_cast<int>(sequence.block_table.size());
  if (num_tokens <= int64_t{num_held} * block_size_) return true;  // mostly: spares a division
  const int num_missing = blocks_for(num_tokens) - num_held;
  if (num_missing > num_free_) return false;
  for (int i = 0; i < num_missing; ++i) {
    int32_t& block = sequence.block_table.emplace_back();  // throws before a block is held
    block = take_free_block();
  }
  return true;
}

void BlockManager::deallocate(Sequence& sequence) {
  while (!sequence.block_table.empty()) {
    drop(sequence.block_table.back());
    sequence.block_table.pop_back();
  }
  sequence.chain = {};
  sequence.num_computed_tokens = 0;
}

void BlockManager::register_computed(Sequence& sequence, int num_tokens) {
  num_tokens = std::min(num_tokens, sequence.num_cacheable_tokens);
  PrefixChain& chain = sequence.chain;
  if (num_tokens < (chain.num_blocks + int64_t{1}) * block_size_) return;
  const int num_full = num_tokens / block_size_;
  if (chain.num_blocks == 0) chain = {.hash = sequence.cache_salt};
  while (chain.num_blocks < num_full) {
    const auto tokens =
        std::span<const int32_t>(sequence.token_ids)
            .subspan(static_cast<size_t>(chain.num_blocks) * block_size_, block_size_);
    const uint64_t hash = hash_(chain.hash, tokens);
    int& block = sequence.block_table[chain.num_blocks];
    if (const int found = find_block(hash, sequence, tokens, chain.content_id); found >= 0) {
      // Another sequence computed the same text first. Held as its own, that block outlives all
      // that will be registered after it.
      hold(found);
      drop(std::exchange(block, found));
    } else {
      register_block(block, hash, sequence, tokens, chain.content_id);
    }
    chain = {chain.num_blocks + 1, hash, blocks_[block].content_id};
  }
}

void BlockManager::register_block(int block, uint64_t hash, const Sequence& sequence,
                                  std::span<const int32_t> token_ids, uint64_t parent_id) {
  Block& b = blocks_[block];
  NANOVLLM_CHECK(b.content_id == 0);
  b.content_id = next_content_id_++;
  b.parent_id = parent_id;
  b.salt = sequence.cache_salt;
  b.hash = hash;
  std::copy(token_ids.begin(), token_ids.end(),
            token_ids_.begin() + static_cast<ptrdiff_t>(block) * block_size_);
  int& bucket = buckets_[hash & (buckets_.size() - 1)];
  b.next_in_bucket = std::exchange(bucket, block);
  ++num_registered_;
}

int BlockManager::find_block(uint64_t hash, const Sequence& sequence,
                             std::span<const int32_t> token_ids, uint64_t parent_id) const {
  for (int block = buckets_[hash & (buckets_.size() - 1)]; block >= 0;
       block = blocks_[block].next_in_bucket) {
    const Block& b = blocks_[block];
    if (b.hash == hash && b.parent_id == parent_id && b.salt == sequence.cache_salt &&
        std::ranges::equal(tokens_of(block), token_ids)) {
      return block;
    }
  }
  return -1;
}

// Fills block_table and chain with the longest beginning of the sequence that is cached; holds
// nothing yet.
void BlockManager::match_prefix(Sequence& sequence) const {
  const auto num_known = static_cast<int>(sequence.token_ids.size());
  const int num_full = std::min(num_known, sequence.num_cacheable_tokens) / block_size_;
  PrefixChain chain{.hash = sequence.cache_salt};
  while (chain.num_blocks < num_full) {
    const auto tokens =
        std::span<const int32_t>(sequence.token_ids)
            .subspan(static_cast<size_t>(chain.num_blocks) * block_size_, block_size_);
    const uint64_t hash = hash_(chain.hash, tokens);
    const int block = find_block(hash, sequence, tokens, chain.content_id);
    if (block < 0) break;
    sequence.block_table.push_back(block);
    chain = {chain.num_blocks + 1, hash, blocks_[block].content_id};
  }
  sequence.chain = chain;
}

int BlockManager::take_free_block() {
  const int block = blocks_.back().next;
  if (blocks_[block].content_id != 0) unregister(block);
  hold(block);
  return block;
}

void BlockManager::hold(int block) {
  if (blocks_[block].ref_count++ == 0) unlink(block);
}

void BlockManager::drop(int block) {
  NANOVLLM_CHECK(blocks_[block].ref_count > 0);
  if (--blocks_[block].ref_count > 0) return;
  const int anchor = num_blocks();
  link(block, blocks_[block].content_id == 0 ? blocks_[anchor].next : anchor);
}

void BlockManager::unregister(int block) {
  Block& b = blocks_[block];
  int* place = &buckets_[b.hash & (buckets_.size() - 1)];
  while (*place != block) place = &blocks_[*place].next_in_bucket;
  *place = b.next_in_bucket;
  b.next_in_bucket = -1;
  b.content_id = 0;
  --num_registered_;
}

void BlockManager::link(int block, int before) {
  Block& b = blocks_[block];
  b.next = before;
  b.prev = std::exchange(blocks_[before].prev, block);
  blocks_[b.prev].next = block;
  ++num_free_;
}

void BlockManager::unlink(int block) {
  const Block& b = blocks_[block];
  blocks_[b.prev].next = b.next;
  blocks_[b.next].prev = b.prev;
  --num_free_;
}

std::string BlockManager::check_integrity(std::span<const Sequence* const> sequences) const {
  std::vector<int> holders(num_blocks(), 0);
  for (const Sequence* sequence : sequences) {
    if (std::string wrong = check_sequence(*sequence); !wrong.empty()) return wrong;
    for (const int block : sequence->block_table) ++holders[block];
  }
  for (int block = 0; block < num_blocks(); ++block) {
    if (holders[block] != blocks_[block].ref_count) {
      return fmt::format("block {} counts {} holders but has {}", block, blocks_[block].ref_count,
                         holders[block]);
    }
  }
  if (std::string wrong = check_free_list(); !wrong.empty()) return wrong;
  return check_hash_table();
}

std::string BlockManager::check_free_list() const {
  const int anchor = num_blocks();
  int length = 0;
  for (int block = blocks_[anchor].next; block != anchor; block = blocks_[block].next) {
    if (++length > num_free_) return "the free list is longer than its count";
    if (blocks_[block].ref_count != 0) return fmt::format("block {} is free and held", block);
    if (blocks_[blocks_[block].next].prev != block) {
      return fmt::format("the free list breaks at block {}", block);
    }
  }
  if (length != num_free_) return "the free list is shorter than its count";
  const auto unheld = std::count_if(blocks_.begin(), blocks_.end() - 1,
                                    [](const Block& b) { return b.ref_count == 0; });
  if (unheld != num_free_) return "a block is neither free nor held";
  return "";
}

std::string BlockManager::check_hash_table() const {
  int count = 0;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (int block = buckets_[bucket]; block >= 0; block = blocks_[block].next_in_bucket) {
      const Block& b = blocks_[block];
      if (++count > num_registered_) return "the hash table holds more than its count";
      if (b.content_id == 0) return fmt::format("block {} is findable without content", block);
      if (b.content_id >= next_content_id_ || b.parent_id >= b.content_id) {
        return fmt::format("block {} has an impossible identity", block);
      }
      if ((b.hash & (buckets_.size() - 1)) != bucket) {
        return fmt::format("block {} is in the wrong bucket", block);
      }
    }
  }
  if (count != num_registered_) return "the hash table holds less than its count";
  const auto registered = std::count_if(blocks_.begin(), blocks_.end() - 1,
                                        [](const Block& b) { return b.content_id != 0; });
  if (registered != num_registered_) return "a registered block can't be found";
  return "";
}

// A sequence holds what it registered or found: its text, each block the child of the one before.
std::string BlockManager::check_sequence(const Sequence& sequence) const {
  const auto num_held = static_cast<int>(sequence.block_table.size());
  const PrefixChain& chain = sequence.chain;
  if (chain.num_blocks > num_held) return "a sequence registered blocks it does not hold";
  if (num_held > 0 && sequence.num_computed_tokens > num_held * block_size_) {
    return "a sequence computed tokens it has no blocks for";
  }
  uint64_t parent_id = 0;
  for (int i = 0; i < num_held; ++i) {
    const int block = sequence.block_table[i];
    if (block < 0 || block >= num_blocks()) return fmt::format("block {} does not exist", block);
    const uint64_t content_id = blocks_[block].content_id;
    if ((content_id != 0) != (i < chain.num_blocks)) {
      return fmt::format("block {} is registered or not, unlike its sequence", block);
    }
    if (content_id == 0) continue;
    const auto begin = sequence.token_ids.begin() + static_cast<ptrdiff_t>(i) * block_size_;
    if ((i + 1) * block_size_ > static_cast<int>(sequence.token_ids.size()) ||
        !std::equal(begin, begin + block_size_, tokens_of(block).begin())) {
      return fmt::format("block {} is registered for another text", block);
    }
    if (blocks_[block].parent_id != std::exchange(parent_id, content_id)) {
      return fmt::format("block {} does not continue the block before it", block);
    }
  }
  if (chain.num_blocks > 0 && chain.content_id != parent_id) {
    return "a sequence continues another content than its last registered block's";
  }
  return "";
}

}  // namespace nanovllm
