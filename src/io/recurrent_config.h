// What config.json says of recurrent layers, under the names that families with the gated delta
// rule share.
#pragma once

#include "io/json.h"
#include "io/model_config.h"

namespace nanovllm {

inline constexpr int kMaxConvWidth = 16;

// Sizes, and which layers are recurrent: layer_types or, where they are not there, all but every
// full_attention_interval-th. A config without recurrent layers' sizes keeps the family's. Throws
// Error for what does not fit together.
void read_recurrent(const JsonFields& fields, ModelConfig& config);
// Throws Error(kCorruptData) or Error(kUnsupported), beginning with `where`, for numbers that do
// not fit together, or layers of which none is of attention.
void check_recurrent(const std::string& where, const RecurrentConfig& sizes);

}  // namespace nanovllm
