// xgrammar's structural tags: free text with tags in it, between which schemas, regular expressions
// or grammars hold, as JSON says it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/syntax.h"
#include "grammar/token_index.h"

namespace nanovllm::grammar {

// {"type": "structural_tag", "format": {...}}, or the older {"structures": [...], "triggers":
// [...]}. What the text of a tag names of the marks of `tokens` is these tokens; nothing else lets
// marks come. Appends what the user should know to `notes`. Throws Error(kInvalidArgument) or
// Error(kUnsupported) with the path of what is wrong.
NodeId compile_structural_tag(std::string_view json, const JsonSchemaOptions& options,
                              const TokenIndex& tokens, Syntax& syntax,
                              std::vector<std::string>& notes);
// Its JSON alone. Throws Error(kInvalidArgument) for what is none, or too long or deep.
nlohmann::ordered_json parse_structural_tag(std::string_view json);

}  // namespace nanovllm::grammar
