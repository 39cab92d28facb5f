// Converts text to token ids and back, exactly as Hugging Face's `tokenizers` does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm {

// Immutable and thread-safe after load.
class Tokenizer {
 public:
  // Reads tokenizer.json (and tokenizer_config.json, if present) of a model folder, or a GGUF file.
  // Throws Error: kNotFound, kCorruptData, or kUnsupported with the name of the component that is
  // not supported.
  static std::unique_ptr<Tokenizer> load(const std::string& model);
  // From the text of a tokenizer.json; `origin` names it in errors.
  static std::unique_ptr<Tokenizer> from_json(std::string_view json, const std::string& origin);

  ~Tokenizer();

  // Invalid UTF-8 is replaced by U+FFFD first, as Python's decode(errors="replace") does. With
  // add_special_tokens, the post-processor's template adds BOS and the like. Special tokens that
  // the text itself contains are always recognised. A text of more than `most` tokens is given up
  // soon behind them: more than `most` ids of its beginning come back.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = true,
                              size_t most = SIZE_MAX) const;
  // Unknown ids are skipped.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;

  // Bytes of text that no token stands for more than: a text of n times as many has n tokens at
  // least. None where that can't be promised, as where text may be dropped or any number of
  // characters is one unknown token.
  std::optional<size_t> max_bytes_per_token() const;
  // The largest id + 1, added tokens included.
  int vocab_size() const;
  std::optional<int32_t> token_to_id(std::string_view token) const;
  // The vocabulary's own spelling, e.g. "Ġhello".
  std::optional<std::string> id_to_token(int32_t id) const;
  // Whether it is one of added_tokens: text never spells it with other tokens.
  bool is_added(int32_t id) const;
  // Whether it is one of added_tokens with special = true.
  bool is_special(int32_t id) const;
  // The eos_token of tokenizer_config.json, if it is a token of the vocabulary. Of a GGUF file: its
  // eos_token_id first, then the other tokens that end a text or a turn. May be empty.
  const std::vector<int32_t>& eos_token_ids() const;

 private:
  friend class Detokenizer;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nanovllm
