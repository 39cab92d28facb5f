// Regular expressions of tokenizer.json, run by PCRE2 with the meaning they have for Oniguruma, the
// engine of Hugging Face's `tokenizers`.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace nanovllm::text {

struct Span {
  size_t begin, end;  // bytes
};

// Immutable after construction; find() may run in several threads at once. Copies share the code.
class Regex {
 public:
  // Throws Error(kCorruptData) for a pattern that does not compile and Error(kUnsupported) for
  // syntax that has no counterpart; `origin` names the file in both.
  Regex(std::string_view pattern, const std::string& origin);

  // The first match that starts at or after `from`. Throws Error(kInvalidArgument) when the match
  // needs more steps than any sane pattern takes. The text is well-formed UTF-8.
  std::optional<Span> find(std::string_view text, size_t from) const;

 private:
  struct Code;
  std::shared_ptr<Code> code_;
};

}  // namespace nanovllm::text
