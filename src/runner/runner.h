// The seam between the engine and the devices.
#pragma once

#include "runner/step.h"

namespace nanovllm {

// Runs steps on a model whose KV cache has a fixed number of blocks. Tests of the engine put a fake
// here. Steps run in the order they are submitted, so a block freed while a step that writes to it
// is in flight may be given to the next one at once.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual int num_kvcache_blocks() const = 0;
  // How many steps may be submitted and not yet collected: 1, or 2 where a device runs one while
  // the next is laid out.
  virtual int max_in_flight() const { return 1; }

  // Begins one step: stores the KV of the new tokens and samples where asked. Everything that
  // `input` refers to is read before it returns. Throws Error on device faults; nothing is in
  // flight after a throw.
  virtual void submit(const StepInput& input) = 0;
  // Waits for the oldest step submitted and not yet collected. Throws as submit().
  virtual StepOutput collect() = 0;
  // Forgets the steps that were submitted and not collected, once they have ended. A device that
  // failed says so when it is given the next one.
  virtual void abandon() noexcept = 0;
};

}  // namespace nanovllm
