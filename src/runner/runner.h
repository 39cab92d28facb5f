// The seam between the engine and the devices.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "runner/step.h"

namespace nanovllm {

// Runs steps on a model whose KV cache has a fixed number of blocks. Tests of the engine put a fake
// here. Steps run in the order they are submitted, so a block freed while a step that writes to it
// is in flight may be given to the next one at once.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual int num_kvcache_blocks() const = 0;
  // Computes one step: stores the KV of the new tokens and samples where asked. Everything that
  // `input` refers to is read before it returns. Throws Error on device faults; nothing is in
  // flight after a throw.
  virtual StepOutput run(const StepInput& input) = 0;

  // The asynchronous form: how many steps may be in flight while the next one is submitted (0 or
  // 1). A runner with 0 needs only run().
  virtual int pipeline_depth() const { return 0; }
  // Enqueues a step. Everything that `input` refers to is read before it returns. Throws as run().
  virtual void submit(const StepInput& input) { done_ = run(input); }
  // Waits for the oldest step submitted and not yet collected. Throws as run().
  virtual StepOutput collect() { return std::move(done_); }
  // Forgets the steps that were submitted and not collected, once they have ended. A device that
  // failed says so when it is given the next one.
  virtual void abandon() noexcept {}

 private:
  StepOutput done_;
};

}  // namespace nanovllm
