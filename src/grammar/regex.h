// Regular expressions: what ECMAScript, Python and RE2 share, by code points.
#pragma once

#include <string>
#include <string_view>

#include "grammar/syntax.h"

namespace nanovllm::grammar {

struct RegexOptions {
  Spelling spelling = Spelling::kText;  // how the matched characters are written
  bool is_search = false;  // it may match anywhere in the text, as `pattern` of JSON Schema does
  std::string where = "regex";  // what errors begin with
};

// No look-around, no back-references, no flags, no boundaries of words. \d and \w are ASCII, \s is
// ASCII white space, and \S no white space at all, nor is [^\s]. Throws Error(kInvalidArgument)
// with the position of what is wrong, Error(kUnsupported) with that of what is not supported.
NodeId compile_regex(std::string_view pattern, Syntax& syntax, const RegexOptions& options = {});

// The same parts for other grammars.
CharRanges white_space();          // ASCII
CharRanges unicode_white_space();  // what any of the three takes for it

}  // namespace nanovllm::grammar
