// What the layers of a model are, for people.
#pragma once

#include <string>
#include <vector>

#include "io/model_config.h"
#include "ops/layer_spec.h"

namespace nanovllm {

// A line for each kind of layers with the sizes of the whole model, whatever this rank's share in
// `spec`: "22 layers: ...".
std::vector<std::string> summarise_layers(const StackSpec& spec, const ModelConfig& config);

}  // namespace nanovllm
