// JSON Schema, drafts 7 and 2020-12, as a grammar of JSON texts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/syntax.h"

namespace nanovllm::grammar {

// Appends what the user should know to `notes`. Throws Error(kInvalidArgument) for what is no
// schema or can't be satisfied, and Error(kUnsupported) for what would narrow the result and can't
// be enforced, each with the path in the schema.
NodeId compile_json_schema(std::string_view schema, const JsonSchemaOptions& options,
                           Syntax& syntax, std::vector<std::string>& notes);

}  // namespace nanovllm::grammar
