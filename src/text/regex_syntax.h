// Oniguruma's Ruby syntax to PCRE2's.
#pragma once

#include <string>
#include <string_view>

namespace nanovllm::text {

// Throws Error(kUnsupported) for what has no counterpart and Error(kCorruptData) for what is not a
// pattern; `origin` names the file in both.
std::string to_pcre2_syntax(std::string_view pattern, const std::string& origin);

}  // namespace nanovllm::text
