// How much a stack of layers computes and reads: a pure function of its spec, for predictions.
#pragma once

#include "base/dtype.h"
#include "ops/layer_spec.h"

namespace nanovllm {

// Of one rank. A new token "sees" the tokens before it and itself. What layers with a window do for
// a token is counted with each token, as if it saw the whole window.
struct StackWork {
  // Floating-point operations of products with weights, and of recurrent rules, for each new token;
  // a mixture's for the experts that it goes to.
  double flops_per_token = 0;
  // Those of attention in layers with a window.
  double window_flops_per_token = 0;
  // For each new token and each token that it sees.
  double flops_per_seen_token = 0;
  // Bytes of keys and values of each token that is seen, however many new ones see it.
  double kv_bytes_per_seen_token = 0;

  bool operator==(const StackWork&) const = default;
};

// dtype: of the KV cache.
StackWork work_of(const StackSpec& spec, DType dtype);

}  // namespace nanovllm
