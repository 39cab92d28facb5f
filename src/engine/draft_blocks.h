// Where the KV of a draft model lies, which is kept of one group of the target's layers alone.
#pragma once

#include <cstdint>
#include <vector>

namespace nanovllm {

// A draft model's blocks for those blocks of the target's pool that hold what it has KV of. Any
// block of the target may be one of them, but not all at a time: there are fewer of the draft
// model's, and the least recently used gives way. All operations are O(1). Not thread-safe.
class DraftBlocks {
 public:
  DraftBlocks(int num_target_blocks, int num_blocks);

  // To be called before those of a step are taken: none of them gives way to another one of it.
  void begin_step() { ++step_; }
  // Whether a block of the target has one, with what was written there.
  bool has(int target_block) const { return of_target_[target_block] >= 0; }
  // That of a block of the target, which gets one where it has none; -1 = all are in use.
  int take(int target_block);

 private:
  struct Block {
    int target = -1;
    int prev = 0, next = 0;  // in the ring, the least recently used first
    int64_t step = -1;       // that took it last
  };
  void link_last(int block);

  std::vector<int> of_target_;  // [target's blocks], -1 = none
  std::vector<Block> blocks_;   // and one more: the head of the ring
  int64_t step_ = 0;
};

}  // namespace nanovllm
