// The table of global functions, sorted by name.
#pragma once

#include "text/jinja/function.h"

namespace nanovllm::jinja {

BuiltinTable globals();

}  // namespace nanovllm::jinja
