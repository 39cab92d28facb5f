// Texts whose KV can be found again, cut into blocks of tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace nanovllm {

// A tree: a node is a full block of tokens after the text that its parent ends, under a salt (texts
// of different salts have nothing in common). A node is found by a hash that is chained over the
// whole text, but only if its own tokens, its parent and its salt are the ones that are looked for:
// a hash collision costs a comparison and never gives another text. A node says in which block of
// the KV cache each group of layers has the KV of its tokens, if any; or, if the group is that of
// recurrent layers, in which slot their state behind its tokens is kept. It lives as long as it has
// such a block, a child, or somebody who holds it; so where all layers have windows, which give
// back a text's beginning, the nodes of a long text, a KiB each, stay for a few blocks at its end.
// All operations are O(1) a node on average. Not thread-safe.
class TextChain {
 public:
  // Of a block's tokens that continue a text with the hash `parent` (an empty one: its salt).
  using HashFunction = std::function<uint64_t(uint64_t parent, std::span<const int32_t> token_ids)>;

  static constexpr int kNone = -1;  // no node: also the parent of a text's first one

  // Makes room for num_nodes nodes; more may come.
  TextChain(int num_nodes, int block_size, int num_groups, HashFunction hash);

  // What follows a node.
  struct Text {
    int parent;
    uint64_t salt;
    std::span<const int32_t> token_ids;  // [block_size]
    uint64_t hash;
  };
  Text text(int parent, uint64_t salt, std::span<const int32_t> token_ids) const;
  // kNone if there is none.
  int find(const Text& text) const;
  // Adds a text that is not there; the caller holds it, once. If it throws std::bad_alloc, nothing
  // has changed.
  int add(const Text& text);

  void hold(int node) {
    if (node != kNone) ++nodes_[node].ref_count;
  }
  void drop(int node);

  int parent(int node) const { return nodes_[node].parent; }
  // Whether no text goes on behind it, and nobody holds it.
  bool is_end(int node) const;
  uint64_t salt(int node) const { return nodes_[node].salt; }
  std::span<const int32_t> token_ids(int node) const {
    return std::span(token_ids_).subspan(static_cast<size_t>(node) * block_size_, block_size_);
  }
  // kNone if the group has none.
  int block(int node, int group) const { return blocks_[place(node, group)]; }
  // The group must have none.
  void set_block(int node, int group, int block);
  void clear_block(int node, int group);

  int num_nodes() const { return num_nodes_; }
  int max_node() const { return static_cast<int>(nodes_.size()) - 1; }
  // Of all nodes and groups. Takes time.
  int num_blocks() const;
  // Checks the hash table and reference counts. `holders`: how often somebody holds each of the
  // nodes 0 .. max_node(). Returns an empty string or what is wrong.
  std::string check(std::span<const int> holders) const;

 private:
  struct Node {
    int ref_count = 0;  // blocks, children, holders; 0 = of no text
    int next = kNone;   // in its hash bucket, or of the nodes of no text
    int parent = kNone;
    uint64_t salt = 0;
    uint64_t hash = 0;
  };

  size_t place(int node, int group) const {
    return static_cast<size_t>(node) * num_groups_ + static_cast<size_t>(group);
  }
  int& bucket(uint64_t hash) { return buckets_[hash & (buckets_.size() - 1)]; }
  void grow(int num_nodes);

  const int block_size_;
  const int num_groups_;
  const HashFunction hash_;
  std::vector<Node> nodes_;
  std::vector<int32_t> token_ids_;  // [nodes, block_size]
  std::vector<int> blocks_;         // [nodes, num_groups], kNone = none
  std::vector<int> buckets_;        // [a power of two] first node of each hash bucket
  int first_unused_ = kNone;
  int num_nodes_ = 0;
};

}  // namespace nanovllm
