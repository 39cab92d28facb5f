// What a config.json says of the rotary embedding.
#pragma once

#include "io/json.h"
#include "io/model_config.h"

namespace nanovllm {

// Fills in the rotary fields of a config whose sizes are there. Throws as ModelConfig::load does.
void read_rope(const JsonFields& fields, ModelConfig& config);

}  // namespace nanovllm
