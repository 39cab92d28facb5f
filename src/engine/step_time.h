// How long steps are to take at most while somebody waits for the next token.
#pragma once

#include <limits>
#include <span>

#include "engine/sequence.h"
#include "runner/step_cost.h"

namespace nanovllm {

struct StepTime {
  // Of a step in which sequences decode; 0 = no bound.
  double most_seconds = 0;
  StepCost cost = {};
};

// EngineConfig::max_step_seconds, where -1 is what suits the device.
StepTime make_step_time(double max_step_seconds, const StepCost& cost);

// What a step may still take on: tokens of all sequences and, where some decode, of prompts as many
// as are expected to take no longer than the bound, with the decodes. Of a prompt whose turn it is
// go at least some tokens, however long they take.
class StepBudget {
 public:
  // `running` are the sequences that may be in the step.
  StepBudget(int max_num_tokens, const StepTime& time, std::span<Sequence* const> running);

  bool has_tokens() const { return num_tokens_ > 0; }
  bool takes_prompts() const { return num_tokens_ > 0 && seconds_ > 0; }
  // How many of its tokens a sequence may compute: all that it has where it decodes.
  int share_of(const Sequence& sequence) const;
  void spend(const Sequence& sequence, int num_new_tokens);

 private:
  const StepCost& cost_;
  int num_tokens_;
  double seconds_ = std::numeric_limits<double>::infinity();  // for prompts
};

// Finds what steps cost from what they took: the last ten or so, each by its share of error, so
// that a step that something held up tells little.
class StepCostLearner {
 public:
  explicit StepCostLearner(const StepCost& guess) : guess_(guess), cost_(guess) {}

  // To be called for each step with the sums of what its sequences had. A step with few tokens, in
  // which weights are waited for, or without prompts tells nothing of what prompts take.
  void learn(int num_tokens, double num_pairs, double seconds);
  const StepCost& cost() const { return cost_; }

 private:
  const StepCost guess_;
  StepCost cost_;
  // Sums over steps of x, y, x^2, xy and y^2, where x and y are the shares of the time that the
  // step's tokens and its pairs took by the guess.
  double x_ = 0, y_ = 0, xx_ = 0, xy_ = 0, yy_ = 0;
};

}  // namespace nanovllm
