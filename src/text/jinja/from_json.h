// JSON to values.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "text/jinja/value.h"

namespace nanovllm::jinja {

// Throws kLimit for JSON that nests too deep.
Value from_json(Budget& budget, const nlohmann::ordered_json& json);

}  // namespace nanovllm::jinja
