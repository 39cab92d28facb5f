// The seam between the engine and the devices.
#pragma once

#include <cstdint>
#include <string>

#include "runner/step.h"

namespace nanovllm {

// Runs steps on a model whose KV cache has a fixed number of blocks. Tests of the engine put a fake
// here.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual int num_kvcache_blocks() const = 0;
  // Computes one step: stores the KV of the new tokens and samples where asked. Throws Error on
  // device faults.
  virtual StepOutput run(const StepInput& input) = 0;
};

}  // namespace nanovllm
