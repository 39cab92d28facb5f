// Where in a text the tokens that it ends with stand earlier.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace nanovllm {

// The ends of a text's beginnings, ordered by the tokens before each, read backwards: those that
// have the most tokens in common with a given end are its neighbours. A treap (Seidel, Aragon:
// Randomized search trees, 1996) whose nodes know the latest end below them. Of ends with equal
// contexts it keeps the latest. 16 bytes an end; the text is its owner's, who gives it with every
// call, longer by then or not. O(log n) comparisons a call, each of at most max_length tokens. Not
// thread-safe.
class SuffixIndex {
 public:
  // A token that is unlike all others, itself included: no context reaches beyond it.
  static constexpr int32_t kBreak = -1;

  // Contexts are compared by their last max_length tokens.
  explicit SuffixIndex(int max_length) : max_length_(max_length) {}

  struct Match {
    int length = 0;  // tokens, at most max_length
    int end = 0;  // the latest one in the index behind which the same tokens stand; if length > 0
  };
  // What of the index has the longest context in common with `context`.
  Match longest(std::span<const int32_t> text, std::span<const int32_t> context) const;

  // Adds the end behind the first `end` tokens, later than all before. If it throws std::bad_alloc,
  // nothing has changed.
  void insert(std::span<const int32_t> text, int end);
  // Removes an end, if it is still the latest with its context.
  void erase(std::span<const int32_t> text, int end);
  // All ends move down by so much, for the owner has cut the beginning of the text. None within it
  // may be left. O(n).
  void shift(int num_tokens);
  int size() const { return size_; }

 private:
  static constexpr int32_t kNone = -1;
  struct Node {
    int32_t end;
    int32_t latest;  // of its subtree
    int32_t left = kNone, right = kNone;
  };
  struct Order {
    int common;  // tokens that both contexts end with
    int sign;    // of the first one against the second: -1, 0 or 1
  };

  Order compare(std::span<const int32_t> a, std::span<const int32_t> b) const;
  Order compare(std::span<const int32_t> text, std::span<const int32_t> context, int node) const {
    return compare(context, text.first(nodes_[node].end));
  }
  int32_t find(std::span<const int32_t> text, std::span<const int32_t> context) const;
  int32_t take_node();
  int latest_with(std::span<const int32_t> text, std::span<const int32_t> context,
                  int length) const;
  struct Pair {
    int32_t left, right;
  };
  Pair split(std::span<const int32_t> text, std::span<const int32_t> context, int32_t node);
  int32_t merge(int32_t left, int32_t right);
  int32_t without(std::span<const int32_t> text, std::span<const int32_t> context, int32_t node);
  int32_t latest_of(int32_t node) const { return node == kNone ? kNone : nodes_[node].latest; }
  void update(int32_t node);

  const int max_length_;
  std::vector<Node> nodes_;
  int32_t root_ = kNone;
  int32_t free_ = kNone;  // a list through `left`
  int size_ = 0;
};

}  // namespace nanovllm
