// Hand-written matchers for the split patterns most models share, several times faster than a
// regular expression engine.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace nanovllm::text {

enum class KnownPattern {
  kGpt2,         // GPT-2 and the ByteLevel pre-tokenizer
  kOneDigit,     // Qwen2: cl100k with digits one by one
  kThreeDigits,  // Llama 3: cl100k with groups of up to three digits
};

// By the exact text of the regular expression.
std::optional<KnownPattern> known_pattern(std::string_view regex);
std::string_view regex_of(KnownPattern pattern);

// End of the match that starts at `at` < text.size(); these patterns match everywhere, so matches
// follow each other without a gap. The text is well-formed UTF-8, `at` the start of a character.
size_t scan(KnownPattern pattern, std::string_view text, size_t at);

}  // namespace nanovllm::text
