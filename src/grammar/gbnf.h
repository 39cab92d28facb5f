// llama.cpp's GBNF: rules of literals, classes of characters, groups and repeats.
#pragma once

#include <string_view>

#include "grammar/syntax.h"

namespace nanovllm::grammar {

// Begins with the rule `root`. Throws Error(kInvalidArgument) with the line of what is wrong, or
// the name of a rule that is not defined.
NodeId compile_gbnf(std::string_view text, Syntax& syntax);

}  // namespace nanovllm::grammar
