#include "engine/suffix_index.h"

#include <algorithm>

#include "base/check.h"

namespace nanovllm {

namespace {

// What the heap is ordered by: as good as random, and the same in every run.
uint32_t priority(int32_t node) {
  auto bits = static_cast<uint32_t>(node) * 0x9e3779b9U;
  bits = (bits ^ (bits >> 16)) * 0x85ebca6bU;
  return bits ^ (bits >> 13);
}

}  // namespace

SuffixIndex::Order SuffixIndex::compare(std::span<const int32_t> a,
                                        std::span<const int32_t> b) const {
  const auto token = [](std::span<const int32_t> context, int back) {
    const size_t count = context.size();
    return static_cast<size_t>(back) < count ? context[count - 1 - back] : kBreak;
  };
  for (int i = 0; i < max_length_; ++i) {
    const int32_t x = token(a, i), y = token(b, i);
    if (x != y) return {i, x < y ? -1 : 1};
    if (x == kBreak) return {i, 0};  // nothing stands before
  }
  return {max_length_, 0};
}

// The neighbours of a context have the most in common with it, and all that have as much stand
// beside each other.
SuffixIndex::Match SuffixIndex::longest(std::span<const int32_t> text,
                                        std::span<const int32_t> context) const {
  int length = 0;
  for (int32_t node = root_; node != kNone;) {
    const auto [common, sign] = compare(text, context, node);
    length = std::max(length, common);
    node = sign < 0 ? nodes_[node].left : nodes_[node].right;
  }
  if (length == 0) return {};
  return {length, latest_with(text, context, length)};
}

// Those with the same last `length` tokens are an interval: below the first of them on the way
// down, all right of its lower end and left of its upper end.
int SuffixIndex::latest_with(std::span<const int32_t> text, std::span<const int32_t> context,
                             int length) const {
  const auto has_them = [&](int32_t node) { return compare(text, context, node).common >= length; };
  int32_t top = root_;
  while (!has_them(top)) {
    top = compare(text, context, top).sign < 0 ? nodes_[top].left : nodes_[top].right;
  }
  int latest = nodes_[top].end;
  // Towards one end of the interval: what lies on the other side of those within is within, too.
  const auto walk = [&](int32_t Node::*outward, int32_t Node::*inward) {
    for (int32_t node = nodes_[top].*outward; node != kNone;) {
      const Node& own = nodes_[node];
      const bool is_within = has_them(node);
      if (is_within) latest = std::max({latest, own.end, latest_of(own.*inward)});
      node = is_within ? own.*outward : own.*inward;
    }
  };
  walk(&Node::left, &Node::right);
  walk(&Node::right, &Node::left);
  return latest;
}

int32_t SuffixIndex::find(std::span<const int32_t> text, std::span<const int32_t> context) const {
  int32_t node = root_;
  while (node != kNone) {
    const int sign = compare(text, context, node).sign;
    if (sign == 0) break;
    node = sign < 0 ? nodes_[node].left : nodes_[node].right;
  }
  return node;
}

int32_t SuffixIndex::take_node() {
  if (free_ == kNone) {
    NANOVLLM_CHECK(nodes_.size() < size_t{INT32_MAX});
    // By a quarter: most texts are as long as they get when they come.
    if (nodes_.size() == nodes_.capacity()) nodes_.reserve(nodes_.size() + nodes_.size() / 4 + 64);
    nodes_.emplace_back();
    return static_cast<int32_t>(nodes_.size()) - 1;
  }
  const int32_t node = free_;
  free_ = nodes_[node].left;
  return node;
}

void SuffixIndex::insert(std::span<const int32_t> text, int end) {
  const auto context = text.first(end);
  const int32_t equal = find(text, context);
  const int32_t node = equal == kNone ? take_node() : equal;
  int32_t* place = &root_;
  while (*place != kNone && *place != equal &&
         (equal != kNone || priority(*place) >= priority(node))) {
    Node& above = nodes_[*place];
    above.latest = end;
    place = compare(text, context, *place).sign < 0 ? &above.left : &above.right;
  }
  if (equal != kNone) {
    nodes_[node].end = nodes_[node].latest = end;
    return;
  }
  const auto [left, right] = split(text, context, *place);
  nodes_[node] = {.end = end, .latest = end, .left = left, .right = right};
  *place = node;
  ++size_;
}

void SuffixIndex::erase(std::span<const int32_t> text, int end) {
  const auto context = text.first(end);
  const int32_t node = find(text, context);
  if (node == kNone || nodes_[node].end != end) return;
  root_ = without(text, context, root_);
  nodes_[node].left = free_;
  free_ = node;
  --size_;
}

// Recursions are as deep as the treap, which is a few times log n.
SuffixIndex::Pair SuffixIndex::split(std::span<const int32_t> text,
                                     std::span<const int32_t> context, int32_t node) {
  if (node == kNone) return {kNone, kNone};
  if (compare(text, context, node).sign < 0) {
    const auto [left, right] = split(text, context, nodes_[node].left);
    nodes_[node].left = right;
    update(node);
    return {left, node};
  }
  const auto [left, right] = split(text, context, nodes_[node].right);
  nodes_[node].right = left;
  update(node);
  return {node, right};
}

int32_t SuffixIndex::merge(int32_t left, int32_t right) {
  if (left == kNone) return right;
  if (right == kNone) return left;
  if (priority(left) >= priority(right)) {
    nodes_[left].right = merge(nodes_[left].right, right);
    update(left);
    return left;
  }
  nodes_[right].left = merge(left, nodes_[right].left);
  update(right);
  return right;
}

// The subtree without the node that has the context.
int32_t SuffixIndex::without(std::span<const int32_t> text, std::span<const int32_t> context,
                             int32_t node) {
  const int sign = compare(text, context, node).sign;
  if (sign == 0) return merge(nodes_[node].left, nodes_[node].right);
  int32_t& below = sign < 0 ? nodes_[node].left : nodes_[node].right;
  below = without(text, context, below);
  update(node);
  return node;
}

void SuffixIndex::update(int32_t node) {
  Node& own = nodes_[node];
  own.latest = std::max({own.end, latest_of(own.left), latest_of(own.right)});
}

void SuffixIndex::shift(int num_tokens) {
  for (Node& node : nodes_) {
    node.end -= num_tokens;
    node.latest -= num_tokens;
  }
}

}  // namespace nanovllm
