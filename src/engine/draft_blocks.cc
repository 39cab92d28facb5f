#include "engine/draft_blocks.h"

#include "base/check.h"

namespace nanovllm {

DraftBlocks::DraftBlocks(int num_target_blocks, int num_blocks)
    : of_target_(num_target_blocks, -1), blocks_(static_cast<size_t>(num_blocks) + 1) {
  NANOVLLM_CHECK(num_blocks > 0);
  blocks_.back().prev = blocks_.back().next = num_blocks;
  for (int block = 0; block < num_blocks; ++block) link_last(block);
}

int DraftBlocks::take(int target_block) {
  int& block = of_target_[target_block];
  if (block < 0) {
    const int oldest = blocks_.back().next;
    Block& taken = blocks_[oldest];
    if (taken.step == step_) return -1;
    if (taken.target >= 0) of_target_[taken.target] = -1;
    taken.target = target_block;
    block = oldest;
  }
  Block& taken = blocks_[block];
  if (taken.step == step_) return block;  // of several sequences
  taken.step = step_;
  blocks_[taken.prev].next = taken.next;
  blocks_[taken.next].prev = taken.prev;
  link_last(block);
  return block;
}

void DraftBlocks::link_last(int block) {
  Block& head = blocks_.back();
  const auto anchor = static_cast<int>(blocks_.size()) - 1;
  blocks_[block].next = anchor;
  blocks_[block].prev = head.prev;
  blocks_[head.prev].next = block;
  head.prev = block;
}

}  // namespace nanovllm
