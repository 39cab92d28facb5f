// What a step is expected to take.
#pragma once

#include "ops/backend.h"
#include "ops/stack_work.h"

namespace nanovllm {

// In seconds, of sequences that a step computes together; their costs add up. Each is
//   per_token * n + max(per_pair * pairs, per_seen_token * (c + n))
// for n new tokens behind a context of c: pairs of a new token and one that it sees, its own
// included, are n * c + n * (n + 1) / 2. The first argument of max is arithmetic, the second what
// reading the KV cache takes, which counts where few new tokens see many.
struct StepCost {
  double per_token = 0;
  double per_pair = 0;
  double per_seen_token = 0;
  // true: only how the numbers relate is known; how long steps take is to be learned. false: they
  // are all there is to know, and what a step computes must depend on no clock.
  bool is_guess = false;

  static double pairs(double num_new_tokens, double context) {
    return num_new_tokens * (context + (num_new_tokens + 1) / 2);
  }
  double seconds(int num_new_tokens, int context) const;
  // The most new tokens that take no longer than that.
  int most_tokens(double seconds, int context) const;

  bool operator==(const StepCost&) const = default;
};

// On a device, with the share of its peak that layers usually reach. Of what it does not tell,
// arithmetic is taken to be slow, and reading the KV cache to cost nothing.
StepCost step_cost(const StackWork& work, const DeviceSpeed& speed);
// On some CPU: a guess.
StepCost guessed_step_cost(const StackWork& work);

}  // namespace nanovllm
