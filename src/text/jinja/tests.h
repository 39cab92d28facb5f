// The table of tests, sorted by name.
#pragma once

#include "text/jinja/function.h"

namespace nanovllm::jinja {

BuiltinTable tests();

}  // namespace nanovllm::jinja
