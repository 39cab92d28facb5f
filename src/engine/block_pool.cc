#include "engine/block_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace nanovllm {

BlockPool::BlockPool(int num_blocks)
    : blocks_(static_cast<size_t>(num_blocks) + 1), first_of_use_(num_blocks) {
  NANOVLLM_CHECK(num_blocks > 0);
  const int anchor = num_blocks;
  blocks_[anchor].prev = blocks_[anchor].next = anchor;
  for (int block = 0; block < num_blocks; ++block) link(block, anchor);
}

int BlockPool::take() {
  const int block = next_free();
  NANOVLLM_CHECK(num_free_ > 0 && blocks_[block].content.node < 0);
  hold(block);
  return block;
}

void BlockPool::hold(int block) {
  if (blocks_[block].ref_count++ == 0) unlink(block);
}

void BlockPool::drop(int block, bool is_of_use) {
  NANOVLLM_CHECK(blocks_[block].ref_count > 0);
  if (--blocks_[block].ref_count > 0) return;
  const int anchor = num_blocks();
  if (blocks_[block].content.node < 0) {
    link(block, blocks_[anchor].next);
  } else if (!is_of_use) {
    link(block, first_of_use_);
  } else {
    link(block, anchor);
    if (first_of_use_ == anchor) first_of_use_ = block;
  }
}

void BlockPool::set_content(int block, const Content& content) {
  NANOVLLM_CHECK(blocks_[block].content.node < 0 && content.node >= 0);
  blocks_[block].content = content;
  ++num_cached_;
}

void BlockPool::clear_content(int block) {
  blocks_[block].content = {};
  --num_cached_;
  if (is_free(block)) ++num_empty_;
}

void BlockPool::link(int block, int before) {
  Block& b = blocks_[block];
  b.next = before;
  b.prev = std::exchange(blocks_[before].prev, block);
  blocks_[b.prev].next = block;
  ++num_free_;
  if (b.content.node < 0) ++num_empty_;
}

void BlockPool::unlink(int block) {
  const Block& b = blocks_[block];
  if (block == first_of_use_) first_of_use_ = b.next;
  blocks_[b.prev].next = b.next;
  blocks_[b.next].prev = b.prev;
  --num_free_;
  if (b.content.node < 0) --num_empty_;
}

std::string BlockPool::check(std::span<const int> holders) const {
  for (int block = 0; block < num_blocks(); ++block) {
    if (holders[block] != blocks_[block].ref_count) {
      return fmt::format("block {} counts {} holders but has {}", block, blocks_[block].ref_count,
                         holders[block]);
    }
  }
  const auto cached = std::count_if(blocks_.begin(), blocks_.end() - 1,
                                    [](const Block& b) { return b.content.node >= 0; });
  if (cached != num_cached_) return "another number of blocks has content than is counted";
  return check_free_list();
}

std::string BlockPool::check_free_list() const {
  const int anchor = num_blocks();
  int length = 0, num_empty = 0;
  bool had_content = false, is_first_there = first_of_use_ == anchor;
  for (int block = blocks_[anchor].next; block != anchor; block = blocks_[block].next) {
    if (++length > num_free_) return "the free list is longer than its count";
    if (blocks_[block].ref_count != 0) return fmt::format("block {} is free and held", block);
    const bool has_content = blocks_[block].content.node >= 0;
    if (!has_content && had_content) return fmt::format("block {} has its turn too late", block);
    had_content = has_content;
    num_empty += has_content ? 0 : 1;
    is_first_there = is_first_there || block == first_of_use_;
    if (blocks_[blocks_[block].next].prev != block) {
      return fmt::format("the free list breaks at block {}", block);
    }
  }
  if (length != num_free_) return "the free list is shorter than its count";
  if (num_empty != num_empty_) return "another number of blocks is empty than is counted";
  if (!is_first_there) return "the first block of use is not in the free list";
  const auto unheld = std::count_if(blocks_.begin(), blocks_.end() - 1,
                                    [](const Block& b) { return b.ref_count == 0; });
  if (unheld != num_free_) return "a block is neither free nor held";
  return "";
}

}  // namespace nanovllm
