// JSON Schema, drafts 7 and 2020-12, as a grammar of JSON texts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/syntax.h"

namespace nanovllm::grammar {

// How the members of the outermost object are written where that is not JSON: between tags, or as
// Python's arguments. Their values are JSON, or strings as they are.
struct MemberStyle {
  NodeId before_key, behind_key, behind_value;
  NodeId between;                    // members
  bool (*is_key)(std::string_view);  // what can be written there
  const char* further_keys;          // a regular expression of them where no schema names any
  bool has_plain_strings;            // else they are JSON too
};

// Strings and keys contain none of `excluded`; values and keys that schemas name may. Appends what
// the user should know to `notes`. Throws Error(kInvalidArgument) for what is no schema or can't be
// satisfied, and Error(kUnsupported) for what would narrow the result and can't be enforced, each
// with the path in the schema.
NodeId compile_json_schema(std::string_view schema, const JsonSchemaOptions& options,
                           Syntax& syntax, std::vector<std::string>& notes,
                           std::vector<std::string> excluded = {});

// The members of an object that the schema allows, without braces. Where it says nothing of a
// value's type, that is a string.
NodeId compile_members(std::string_view schema, const MemberStyle& style,
                       const JsonSchemaOptions& options, Syntax& syntax,
                       std::vector<std::string>& notes, std::vector<std::string> excluded);

}  // namespace nanovllm::grammar
