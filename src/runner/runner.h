// The interface between the engine and the devices.
#pragma once

#include <functional>

#include "runner/step.h"
#include "runner/step_cost.h"

namespace nanovllm {

// For masks of allowed tokens that are made while the forward pass runs: called after it was
// started and before anything is drawn. Until it returns, what SamplingRow::allowed points to may
// still be written. With several ranks, each calls it on its own thread. Empty = nothing to wait
// for, as it always is yet: only tests give one.
using AwaitMasks = std::function<void()>;

// Runs steps on a model whose KV cache has a fixed number of blocks. Tests of the engine have a
// fake one. Steps run in the order in which they are submitted: so a block may be freed and given
// to a later step while an earlier one still writes to it.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual int num_kvcache_blocks() const = 0;
  // How many steps may be submitted and not yet collected ("in flight"): 1, or 2 if a device runs
  // one while the host prepares the next.
  virtual int max_in_flight() const { return 1; }
  // What steps are expected to take.
  virtual StepCost step_cost() const { return {}; }

  // Begins one step: stores the KV of the new tokens and draws tokens for the sequences that want
  // them. Everything that `input` points to is read before it returns. Throws Error on device
  // faults; then no step is in flight any more.
  virtual void submit(const StepInput& input, const AwaitMasks& await_masks = {}) = 0;
  // Waits for the oldest step submitted and not yet collected. Throws as submit().
  virtual StepOutput collect() = 0;
  // Waits for the steps in flight and drops their results. If the device failed, the next submit()
  // throws.
  virtual void abandon() noexcept = 0;
};

}  // namespace nanovllm
