#include "engine/text_chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"

namespace nanovllm {

TextChain::TextChain(int num_nodes, int block_size, int num_groups, HashFunction hash)
    : block_size_(block_size), num_groups_(num_groups), hash_(std::move(hash)) {
  NANOVLLM_CHECK(num_nodes > 0 && block_size > 0 && num_groups > 0);
  grow(num_nodes);
}

// What may throw comes first.
void TextChain::grow(int num_nodes) {
  const size_t count = num_nodes, old = nodes_.size();
  std::vector<int> buckets(std::bit_ceil(count + 1), kNone);
  nodes_.reserve(count);
  token_ids_.reserve(count * block_size_);
  blocks_.reserve(count * num_groups_);
  nodes_.resize(count);
  token_ids_.resize(count * block_size_);
  blocks_.resize(count * num_groups_, kNone);
  buckets_.swap(buckets);
  for (int node = 0; node < num_nodes; ++node) {
    const bool is_used = node < static_cast<int>(old) && nodes_[node].ref_count > 0;
    int& first = is_used ? bucket(nodes_[node].hash) : first_unused_;
    nodes_[node].next = std::exchange(first, node);
  }
}

TextChain::Text TextChain::text(int parent, uint64_t salt,
                                std::span<const int32_t> token_ids) const {
  const uint64_t before = parent == kNone ? salt : nodes_[parent].hash;
  return {parent, salt, token_ids, hash_(before, token_ids)};
}

int TextChain::find(const Text& text) const {
  int node = buckets_[text.hash & (buckets_.size() - 1)];
  for (; node != kNone; node = nodes_[node].next) {
    const Node& n = nodes_[node];
    if (n.hash == text.hash && n.parent == text.parent && n.salt == text.salt &&
        std::ranges::equal(token_ids(node), text.token_ids)) {
      break;
    }
  }
  return node;
}

int TextChain::add(const Text& text) {
  if (first_unused_ == kNone) grow(2 * num_nodes_);
  const int node = std::exchange(first_unused_, nodes_[first_unused_].next);
  nodes_[node] = {1, std::exchange(bucket(text.hash), node), text.parent, text.salt, text.hash};
  std::ranges::copy(text.token_ids,
                    token_ids_.begin() + static_cast<ptrdiff_t>(node) * block_size_);
  hold(text.parent);
  ++num_nodes_;
  return node;
}

void TextChain::drop(int node) {
  while (node != kNone) {
    Node& n = nodes_[node];
    NANOVLLM_CHECK(n.ref_count > 0);
    if (--n.ref_count > 0) return;
    int* place = &bucket(n.hash);
    while (*place != node) place = &nodes_[*place].next;
    *place = n.next;
    n.next = std::exchange(first_unused_, node);
    --num_nodes_;
    node = n.parent;  // which has a child less
  }
}

void TextChain::set_block(int node, int group, int block) {
  int& there = blocks_[place(node, group)];
  NANOVLLM_CHECK(there == kNone);
  there = block;
  hold(node);
}

void TextChain::clear_block(int node, int group) {
  blocks_[place(node, group)] = kNone;
  drop(node);
}

bool TextChain::is_end(int node) const {
  const auto blocks = std::span(blocks_).subspan(place(node, 0), num_groups_);
  return nodes_[node].ref_count == num_groups_ - std::ranges::count(blocks, kNone);
}

int TextChain::num_blocks() const {
  return static_cast<int>(std::ssize(blocks_) - std::ranges::count(blocks_, kNone));
}

std::string TextChain::check(std::span<const int> holders) const {
  std::vector<int> counts(holders.begin(), holders.end());
  int count = 0;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (int node = buckets_[bucket]; node != kNone; node = nodes_[node].next) {
      const Node& n = nodes_[node];
      if (++count > num_nodes_) return "the hash table holds more than its count";
      if ((n.hash & (buckets_.size() - 1)) != bucket) {
        return fmt::format("node {} is in the wrong bucket", node);
      }
      if (n.parent != kNone) {
        if (nodes_[n.parent].salt != n.salt) return fmt::format("node {} changes its salt", node);
        ++counts[n.parent];
      }
      for (int group = 0; group < num_groups_; ++group) {
        if (block(node, group) != kNone) ++counts[node];
      }
    }
  }
  if (count != num_nodes_) return "the hash table holds less than its count";
  for (size_t node = 0; node < nodes_.size(); ++node) {
    if (counts[node] != nodes_[node].ref_count) {
      return fmt::format("node {} counts {} references but has {}", node, nodes_[node].ref_count,
                         counts[node]);
    }
  }
  return "";
}

}  // namespace nanovllm
