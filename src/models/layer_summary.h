// What the layers of a model are, for people.
#pragma once

#include <string>
#include <vector>

#include "io/model_config.h"
#include "ops/layer_spec.h"

namespace nanovllm {

// One line for each kind of layer, "22 layers: ...", with the sizes of the whole model, not of this
// rank's part.
std::vector<std::string> summarise_layers(const StackSpec& spec, const ModelConfig& config);

}  // namespace nanovllm
