// tokenizer.json or the like in a GGUF file: text to ids and back, exactly as Hugging Face's
// `tokenizers` does.
#pragma once

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
  // Reads a GGUF file, or tokenizer.json (and tokenizer_config.json where present) of a model
  // folder.
  // Throws Error: kNotFound, kCorruptData, or kUnsupported naming the component that is not
  // supported.
  static std::unique_ptr<Tokenizer> load(const std::string& model);
  // From the text of a tokenizer.json; `origin` names it in errors.
  static std::unique_ptr<Tokenizer> from_json(std::string_view json, const std::string& origin);

  ~Tokenizer();

  // Invalid UTF-8 is replaced by U+FFFD first, as Python's decode(errors="replace") does.
  // add_special_tokens runs the post-processor's template (BOS and the like); special tokens in the
  // text are recognised either way.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = true) const;
  // Unknown ids give nothing.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;

  int vocab_size() const;  // largest id + 1, added tokens included
  std::optional<int32_t> token_to_id(std::string_view token) const;
  std::optional<std::string> id_to_token(
      int32_t id) const;              // the vocabulary's own spelling, e.g. "Ġhello"
  bool is_special(int32_t id) const;  // added and marked special
  // tokenizer_config.json's eos_token, where it names a token; of a GGUF file first its
  // eos_token_id, then the other tokens that end a text or a turn.
  const std::vector<int32_t>& eos_token_ids() const;

 private:
  friend class Detokenizer;
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace nanovllm
