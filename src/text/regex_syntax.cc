#include "text/regex_syntax.h"

namespace nanovllm::text {

std::string to_pcre2_syntax(std::string_view pattern, const std::string&) {
  return std::string(pattern);
}

}  // namespace nanovllm::text
