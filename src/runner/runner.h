// The interface between the engine and the devices.
#pragma once

#include <array>
#include <span>

#include "ops/forward_batch.h"
#include "runner/step.h"
#include "runner/step_cost.h"

namespace nanovllm {

// How many states of sequences there is room for, and how many logs (see ForwardBatch).
struct StatePoolSize {
  int num_slots = 0;
  int num_logs = 0;
  // Tokens.
  int chunk = 0;
  int max_drafts = kMaxDraftRows - 1;
};

// Runs steps on a model whose KV cache has a fixed number of blocks. Tests of the engine have a
// fake one. Steps run in the order in which they are submitted: so a block may be freed and given
// to a later step while an earlier one still writes to it.
//
// Each step takes three calls, once each and in this order: submit(), draw(), collect(). Between
// submit() and draw() the step before may be collected, and nothing be submitted: so a draw may
// depend on all tokens before it while its forward pass runs already.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual int num_kvcache_blocks() const = 0;
  // Of each group of layers that has a block table of its own; see kv_blocks_for.
  virtual std::span<const int> kv_windows() const {
    static constexpr std::array<int, 1> kAll = {0};
    return kAll;
  }
  // How many steps may be submitted and not yet collected ("in flight"): 1, or 2 if a device runs
  // one while the host prepares the next.
  virtual int max_in_flight() const { return 1; }
  // Of the states of recurrent layers; {} = the model has none.
  virtual StatePoolSize state_pool() const { return {}; }
  // What steps are expected to take.
  virtual StepCost step_cost() const { return {}; }

  // Begins one step: its forward pass, which stores the KV of the new tokens. Everything that
  // `input` points to is read before it returns. Throws Error on device faults; then no step is in
  // flight any more.
  virtual void submit(const StepInput& input) = 0;
  // Draws the tokens of the step submitted last: one row for each draw, numbered over all its
  // sequences in order (SequenceInput::sample); none for a step without. Everything that `rows`
  // point to is read before it returns. Throws as submit().
  virtual void draw(std::span<const SamplingRow> rows) = 0;
  // Waits for the oldest step submitted and not yet collected, which was drawn. Throws as submit().
  virtual StepOutput collect() = 0;
  // Waits for the steps in flight, also one that was not drawn, and drops their results. If the
  // device failed, the next submit() throws.
  virtual void abandon() noexcept = 0;
};

}  // namespace nanovllm
