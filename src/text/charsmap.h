// SentencePiece's table of character replacements, the Precompiled normalizer of tokenizer.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm::text {

// Immutable after construction.
class Charsmap {
 public:
  // Nothing for what is not base64 of such a table.
  static std::optional<Charsmap> from_base64(std::string_view base64);

  // Appends the replaced text to `out`. The text is well-formed UTF-8.
  void apply(std::string_view text, std::string& out) const;

 private:
  std::optional<std::string_view> find(std::string_view key) const;

  std::vector<uint32_t> units_;  // a double-array trie as Darts-clone lays it out
  bool is_plain_[256] = {};      // by byte: ASCII that stays, whatever ASCII follows
  std::string replacements_;     // zero-terminated; the trie holds offsets
};

}  // namespace nanovllm::text
