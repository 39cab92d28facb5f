// What the readers of config.json and of a GGUF file's metadata share.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "io/model_config.h"

namespace nanovllm {

inline constexpr double kAboveZero = 1e-6;  // the least of what may not be 0
inline constexpr int64_t kMaxExperts = 1 << 16;

template <typename T, typename V>
void assign_if(T& field, const std::optional<V>& value) {
  if (value) field = static_cast<T>(*value);
}

// layer_types: which layers are of that type, where the others have full attention. nullopt: there
// is none. Throws Error(kCorruptData) that names the entry which fits neither.
std::optional<std::vector<bool>> read_layer_types(const JsonFields& fields, std::string_view type,
                                                  int num_layers);

// Adds PREFIXkey for each key that nobody has read and that is not known to be harmless to
// ModelConfig::unknown_keys.
void add_unknown_keys(const JsonFields& fields, const std::string& prefix, ModelConfig& config);

}  // namespace nanovllm
