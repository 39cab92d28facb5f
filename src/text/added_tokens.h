// Tokens that are recognised in the text before anything else looks at it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/normalizer.h"
#include "text/vocabulary.h"

namespace nanovllm::text {

struct AddedToken {
  std::string content;
  bool single_word = false;  // not next to a letter, digit or underscore
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // ... and after it
  bool normalized = false;   // is looked for in normalized text, by its own normalized form
  bool special = false;      // left out by decode(skip_special_tokens)
  bool operator==(const AddedToken&) const = default;
};

// The special tokens that tokenizer_config.json names, in the order of transformers.
inline constexpr const char* kSpecialTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                 "pad_token", "cls_token", "mask_token"};

// An entry of added_tokens or added_tokens_decoder.
AddedToken parse_added_token(const class Fields& fields);

// Leftmost-longest search for a set of strings.
class TokenTrie {
 public:
  void add(std::string_view key, int32_t id);
  void finish();  // after the last add
  bool empty() const { return nodes_.size() <= 1; }
  struct Match {
    size_t begin, end;
    int32_t id;
  };
  // The first match that starts at or after `from`; id -1: none.
  Match find(std::string_view text, size_t from) const;

 private:
  struct Node {
    int32_t id = -1;
    std::vector<std::pair<uint8_t, uint32_t>> children;
  };
  std::vector<Node> nodes_ = std::vector<Node>(1);
  uint32_t first_child_[256] = {};  // of the root, 0: none
  int only_first_ = -1;             // the byte that all keys start with, -1: there are several
};

// Immutable after finish().
class AddedTokens {
 public:
  // Gives the token the id its content has already, or the next free one, whatever id the file
  // names: so does Hugging Face.
  void add(AddedToken token, const Vocabulary& vocabulary);
  void add_with_id(AddedToken token, int32_t id);  // the content is not empty
  void finish(const Normalizer& normalizer);

  struct Piece {
    size_t begin, end;  // bytes
    int32_t id;         // -1: ordinary text
  };
  // Cuts the text at tokens, ordinary pieces first to last, none empty; replaces what `pieces`
  // held.
  void split(std::string_view text, bool normalized, std::vector<Piece>& pieces) const;
  bool empty(bool normalized) const { return (normalized ? normalized_ : verbatim_).empty(); }
  // Bytes of what is recognised as one token at most; none where blanks go with one.
  std::optional<size_t> max_bytes() const { return max_bytes_; }

  int32_t find(std::string_view content) const;  // -1: not there
  const AddedToken* get(int32_t id) const;       // nullptr: not an added token
  int32_t id_end() const { return static_cast<int32_t>(index_.size()); }  // largest id + 1

 private:
  std::vector<AddedToken> tokens_;
  std::vector<int32_t> ids_;                             // of tokens_
  std::vector<int32_t> index_;                           // id -> tokens_, -1: none
  std::unordered_map<std::string, int32_t> by_content_;  // -> id
  int32_t next_id_ = -1;
  TokenTrie verbatim_, normalized_;
  std::optional<size_t> max_bytes_ = 0;
};

}  // namespace nanovllm::text
