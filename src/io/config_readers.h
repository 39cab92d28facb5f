// Readers of config.json and generation_config.json, for models of any family: each fills in its
// part of a ModelConfig that has the family's defaults. They throw Error: kCorruptData (a field of
// the wrong type or out of range), kUnsupported.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "io/config_rules.h"
#include "io/json.h"
#include "io/model_config.h"

namespace nanovllm {

inline constexpr int64_t kMaxConfigBytes = 16 << 20;

// Leaves of a multimodal model's config the text_config, with what the whole model says of itself.
void keep_text_part(Json& document);

// A size that config.json does not give is left as it is.
void read_sizes(const JsonFields& fields, ModelConfig& config);
// Of a config whose sizes are there.
void read_experts(const JsonFields& fields, ModelConfig& config);
// Layers with a window that the config has already are the default.
void read_windows(const JsonFields& fields, ModelConfig& config, const ConfigRules& rules);
void read_dtype(const JsonFields& fields, ModelConfig& config);
// eos_token_id: one id or a list of them, in either file; negative ids stand for "none". Repeats
// are left out.
void read_end_tokens(const JsonFields& fields, ModelConfig& config);
void read_generation_config(const std::string& path, ModelConfig& config);

}  // namespace nanovllm
