// How models write the arguments of calls that are not JSON objects.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/json_schema.h"
#include "grammar/syntax.h"
#include "grammar/token_index.h"

namespace nanovllm::grammar {

// As the models' chat templates do it: qwen_xml, glm_xml and pythonic. Adds the texts that must not
// come in strings then. None: the name is not known.
std::optional<MemberStyle> member_style(std::string_view name, const TokenIndex& tokens,
                                        Syntax& syntax, std::vector<std::string>& excluded);

}  // namespace nanovllm::grammar
