// The KV cache's blocks: how many hold each, what can be found in it, and which one is taken next.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace nanovllm {

// Equal blocks, each for whichever group of layers takes it. Blocks that nobody holds are free,
// whether something can be found in them or not. They are in one list in the order in which they
// will be taken: those without content first, then those of no use, the longest free first, then
// the least recently used. All operations are O(1). Not thread-safe.
class BlockPool {
 public:
  // Whose KV a block has: of a text that is a node of the TextChain, for the layers of a group.
  struct Content {
    int node = -1;  // -1 = nothing that can be found
    int group = 0;
  };

  explicit BlockPool(int num_blocks);

  int num_blocks() const { return static_cast<int>(blocks_.size()) - 1; }
  int num_free() const { return num_free_; }
  // Free ones in which nothing can be found.
  int num_empty() const { return num_empty_; }
  // With content, free or not.
  int num_cached() const { return num_cached_; }
  bool is_free(int block) const { return blocks_[block].ref_count == 0; }
  const Content& content(int block) const { return blocks_[block].content; }

  // The block that take() will take. There must be a free one.
  int next_free() const { return blocks_.back().next; }
  // Takes a free block, which must have no content any more: held once.
  int take();
  void hold(int block);  // once more
  // Once less; without any it is free. What is of no use is taken before all that is.
  void drop(int block, bool is_of_use = true);
  // The block must have none.
  void set_content(int block, const Content& content);
  void clear_content(int block);

  // Checks counts and free list. `holders`: how many hold each block. Returns an empty string or
  // what is wrong.
  std::string check(std::span<const int> holders) const;

 private:
  struct Block {
    int ref_count = 0;
    int prev = 0, next = 0;  // in the free list while ref_count is 0
    Content content;
  };

  void link(int block, int before);  // into the free list
  void unlink(int block);            // out of it
  std::string check_free_list() const;

  std::vector<Block> blocks_;  // and one more: the head of the free list, which is a ring
  int first_of_use_;           // in the free list; the head if none is
  int num_free_ = 0;
  int num_empty_ = 0;
  int num_cached_ = 0;
};

}  // namespace nanovllm
