// The bound of a completion's first thought: which token ends it, as a function of the ids before
// it alone, so that whoever continues a request ends its thought at the same place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "nanovllm/sampling_params.h"

namespace nanovllm {

// Finds a tag in ids that come one by one.
class TagFinder {
 public:
  // `tag` must live longer, and not be empty.
  explicit TagFinder(std::span<const int32_t> tag) : tag_(tag) {}

  // Whether the tag ends with this id.
  bool append(int32_t id);
  // Ids of the tag that the end of what came has, and those that it lacks.
  size_t num_found() const { return num_found_; }
  size_t num_missing() const { return tag_.size() - num_found_; }
  int32_t next_id() const { return tag_[num_found_]; }

 private:
  std::span<const int32_t> tag_;
  size_t num_found_ = 0;  // less than the tag has
};

// Tokens behind the start tag of the last thought of `prompt`; -1 = none is open at its end.
int num_open_thinking_tokens(std::span<const int32_t> prompt, const ThinkingTags& tags);

class ThinkingBudget {
 public:
  // `tags` must live longer. budget: tokens, not negative.
  ThinkingBudget(const ThinkingTags& tags, int budget);

  void append(int32_t id);  // of the output
  // What the next token has to be; -1 = anything.
  int32_t forced_id() const;
  // How many of the next tokens may be anything, whatever those before them turn out to be.
  int64_t num_free() const;

 private:
  const int budget_;
  const int num_prompt_tokens_;
  int num_tokens_;  // of the open thought; -1 = none is open yet
  // The output so far is the beginning of a start tag, which repeats what is open: it is not
  // counted.
  bool may_begin_ = true;
  size_t num_output_tokens_ = 0;
  bool is_over_ = false;
  TagFinder start_, end_;
};

}  // namespace nanovllm
