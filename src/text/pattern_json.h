// {"String": "..."} and {"Regex": "..."} of Split and Replace.
#pragma once

#include "text/json_fields.h"
#include "text/split.h"

namespace nanovllm::text {

Pattern parse_pattern(const Fields& fields, const char* name);

}  // namespace nanovllm::text
