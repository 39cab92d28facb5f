// JSON Schema's formats that are enforced, as regular expressions.
#pragma once

#include <string>
#include <string_view>

namespace nanovllm::grammar {

// Of the whole string; null for a format that is not enforced.
const std::string* regex_of_format(std::string_view format);

}  // namespace nanovllm::grammar
