// What a config.json says of the rotary embedding.
#pragma once

#include "io/config_rules.h"
#include "io/json.h"
#include "io/model_config.h"

namespace nanovllm {

// Fills in the rotary fields of a config whose sizes and windows are there. It reads both layouts:
// top-level rope_theta and rope_scaling, and rope_parameters of transformers 5 (if both are there,
// rope_scaling counts). Throws as those of io/config_readers.h do.
void read_rope(const JsonFields& fields, ModelConfig& config, const ConfigRules& rules);

}  // namespace nanovllm
