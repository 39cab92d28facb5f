// A tokenizer's vocabulary as the bytes that its tokens write, sorted into a trie, so that a mask
// is made by walking it once.
//
// Marks are tokens that stand for no text: special ones, and added ones that are more than white
// space, as those around thoughts and calls. An automaton reads them as symbols between two bytes
// that no UTF-8 has, so that nothing takes them for text and only what names one lets it come.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/tokenizer.h"

namespace nanovllm::grammar {

// One bit a token, of the first id first; the words that `TokenIndex::num_words()` says.
using MaskWords = std::vector<uint32_t>;

// Its nodes in the order of their texts: what begins with a node's text follows it up to `skip`.
class ByteTrie {
 public:
  struct Node {
    uint32_t skip;         // the first node behind those that begin with its text
    uint32_t first_token;  // in ids(); up to the next node's first_token
    uint16_t depth;        // bytes of its text, at most kMaxTokenBytes
    uint8_t byte;          // the last of them
  };
  ByteTrie() = default;
  // `ids` are sorted by their texts, of which none is empty.
  ByteTrie(const std::vector<std::string>& texts, std::vector<int32_t> ids);

  // Node 0 is the root, and behind the last one stands another that ends its tokens.
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const int32_t> ids() const { return ids_; }

 private:
  std::vector<Node> nodes_;
  std::vector<int32_t> ids_;
};

// Immutable after construction, but for the masks that it keeps; thread-safe.
class TokenIndex {
 public:
  // Tokens of plain characters of a JSON string, up to max_chars of them and the last one cut off
  // perhaps: where any run of plain characters may follow, they need no walk.
  struct Slice {
    uint32_t max_chars;
    MaskWords tokens;
    ByteTrie others;
  };

  explicit TokenIndex(const Tokenizer& tokenizer);
  // From texts by id; empty: no token of text.
  explicit TokenIndex(std::vector<std::string> texts);

  // What an automaton reads of the token: its text, or a mark's symbol; empty for what is neither.
  std::string_view bytes(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < texts_.size() ? std::string_view(texts_[id])
                                                              : std::string_view();
  }
  // The symbol of the mark with this text.
  static std::string symbol(std::string_view text);
  static bool has_symbol(std::string_view bytes) { return bytes.find(kMarkByte) != bytes.npos; }
  // A text with symbols in place of the marks that it names, the longest that begins first.
  std::string with_symbols(std::string_view text) const;

  int vocab_size() const { return static_cast<int>(texts_.size()); }
  size_t num_words() const { return (texts_.size() + 31) / 32; }
  uint32_t longest() const { return longest_; }  // bytes
  // Whether a token is this byte alone.
  bool has_byte(uint8_t byte) const { return has_byte_[byte]; }
  const ByteTrie& trie() const { return trie_; }
  // The largest that a run of so many characters has all tokens of; null: there is none.
  const Slice* slice(uint32_t chars) const;

 private:
  static constexpr char kMarkByte = '\xFF';
  void build();

  std::vector<std::string> texts_;  // by id
  std::vector<std::string> marks_;  // their texts, sorted
  uint32_t longest_ = 1;
  std::array<bool, 256> has_byte_ = {};
  ByteTrie trie_;
  std::vector<Slice> slices_;  // from few characters to many
};

}  // namespace nanovllm::grammar
