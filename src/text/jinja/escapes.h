// The escapes of string literals, as Python's unicode-escape codec reads them.
#pragma once

#include <string>
#include <string_view>

namespace nanovllm::jinja {

// The string that a literal (without its quotes) stands for. Throws kSyntax for \x, \u and \U
// without their digits and for \N{...}.
std::string unescape(std::string_view literal);

}  // namespace nanovllm::jinja
