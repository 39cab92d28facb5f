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
  // Where it is given, classes are narrowed to these characters, and a part that matches none of
  // them is refused with the words of `without`.
  const CharRanges* only = nullptr;
  std::string_view without = {};
};

// No look-around, no back-references, no flags, no boundaries of words. \d, \w and \s are ASCII's;
// \D, \W and \S have none of Unicode's either, nor have [^\d], [^\w] and [^\s]. Throws
// Error(kInvalidArgument) with the position of what is wrong, Error(kUnsupported) with that of what
// is not supported.
NodeId compile_regex(std::string_view pattern, Syntax& syntax, const RegexOptions& options = {});

// The same parts for other grammars.
CharRanges white_space();          // ASCII
CharRanges unicode_white_space();  // what any of the three takes for it

}  // namespace nanovllm::grammar
