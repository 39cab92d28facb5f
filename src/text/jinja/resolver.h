// Second half of compiling: names to slots, and the errors that Jinja finds without running
// anything.
#pragma once

#include <cstdint>
#include <string_view>

#include "text/jinja/ast.h"

namespace nanovllm::jinja {

// On a fault `offset` is where it was found.
void resolve(Template& parsed, uint32_t& offset);

}  // namespace nanovllm::jinja
