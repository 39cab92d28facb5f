// Which experts a row goes to.
#pragma once

#include <cstdint>

#include "ops/layer_spec.h"

namespace nanovllm {

// ids and weights [num_active] = the choice of a row with these logits [num_experts], which are
// changed, in its order.
void route(float* logits, int num_experts, const Routing& routing, int32_t* ids, float* weights);

}  // namespace nanovllm
