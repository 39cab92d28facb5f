// A model's words as they come, with the tags in them.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/outputs.h"

namespace nanovllm::server {

struct Tag {
  std::string_view text = {};  // empty = there is none
  // Of the one token that is the tag: the same characters made of other tokens are text. None = the
  // characters are the tag.
  std::optional<int32_t> token_id = {};
};

class TaggedText {
 public:
  // Marks of what is appended next, which may come in pieces.
  void announce(std::span<const TokenMark> marks);
  void append(std::string_view piece) { text_ += piece; }

  std::string_view rest() const { return std::string_view(text_).substr(taken_); }
  // The first bytes of what is there; valid until forget().
  std::string_view take(size_t size);
  void forget();  // what was taken

  struct Found {
    std::string_view before = {};  // the first tag, or what may become one
    int tag = -1;                  // -1 = none yet
  };
  // Of tags none of which begins with another one.
  Found find(std::initializer_list<Tag> tags) const;

 private:
  std::string text_;              // the first taken_ bytes are not needed any more
  size_t taken_ = 0;              // bytes
  size_t begin_ = 0;              // bytes that came before text_
  size_t marked_ = 0;             // of marks_, those before what was taken
  std::vector<TokenMark> marks_;  // offsets from the first byte that ever came
};

}  // namespace nanovllm::server
