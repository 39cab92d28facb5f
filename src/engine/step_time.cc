#include "engine/step_time.h"

#include <algorithm>

namespace nanovllm {

namespace {

// As long as one waits for the next word without wondering; a GPU's users are used to less.
constexpr double kLongestStep = 0.5, kLongestStepOfGpu = 0.1;  // seconds
// Of the bound, for prompts, however long decodes take: whoever waits for his first token waits,
// too.
constexpr double kLeastShare = 0.25;
// With fewer rows, a step waits for the weights as long as it would with these.
constexpr int kLeastTokens = 16;

constexpr double kMemory = 0.9;  // how much of what is known a step leaves
// How strongly tokens and pairs are taken to cost as the guess has them to each other: enough where
// the steps seen can't tell them apart, next to nothing where they can.
constexpr double kTie = 0.003;

}  // namespace

StepTime make_step_time(double max_step_seconds, const StepCost& cost) {
  if (max_step_seconds < 0) max_step_seconds = cost.is_guess ? kLongestStep : kLongestStepOfGpu;
  return {.most_seconds = max_step_seconds, .cost = cost};
}

StepBudget::StepBudget(int max_num_tokens, const StepTime& time, std::span<Sequence* const> running)
    : cost_(time.cost), num_tokens_(max_num_tokens) {
  if (time.most_seconds <= 0) return;
  bool somebody_waits = false;
  double decodes = 0;  // seconds
  for (const Sequence* sequence : running) {
    if (!sequence->decodes()) continue;
    somebody_waits = true;
    decodes += cost_.seconds(sequence->num_uncomputed_tokens(), sequence->num_computed_tokens);
  }
  if (somebody_waits) {
    seconds_ = std::max(time.most_seconds - decodes, kLeastShare * time.most_seconds);
  }
}

int StepBudget::share_of(const Sequence& sequence) const {
  const int num_tokens = std::min(sequence.num_uncomputed_tokens(), num_tokens_);
  if (sequence.decodes() || seconds_ == std::numeric_limits<double>::infinity()) return num_tokens;
  if (seconds_ <= 0) return 0;
  return std::min(num_tokens, std::max(cost_.most_tokens(seconds_, sequence.num_computed_tokens),
                                       kLeastTokens));
}

void StepBudget::spend(const Sequence& sequence, int num_new_tokens) {
  num_tokens_ -= num_new_tokens;
  if (!sequence.decodes()) seconds_ -= cost_.seconds(num_new_tokens, sequence.num_computed_tokens);
}

// Least squares of 1 - a x - b y over the steps, with a tie between a and b: the factors by which
// the guess of a token's and of a pair's cost was wrong.
void StepCostLearner::learn(int num_tokens, double num_pairs, double seconds) {
  if (num_tokens < kLeastTokens || seconds <= 0) return;
  const double x = guess_.per_token * num_tokens / seconds;
  const double y = guess_.per_pair * num_pairs / seconds;
  x_ = kMemory * x_ + x;
  y_ = kMemory * y_ + y;
  xx_ = kMemory * xx_ + x * x;
  xy_ = kMemory * xy_ + x * y;
  yy_ = kMemory * yy_ + y * y;
  const double tie = kTie * (xx_ + yy_);
  const double aa = xx_ + tie, ab = xy_ - tie, bb = yy_ + tie;
  const double determinant = aa * bb - ab * ab;
  if (!(determinant > 0)) return;
  double a = (x_ * bb - y_ * ab) / determinant;
  double b = (y_ * aa - x_ * ab) / determinant;
  if (a < 0) {  // neither costs less than nothing
    a = 0;
    b = y_ / bb;
  } else if (b < 0) {
    b = 0;
    a = x_ / aa;
  }
  cost_.per_token = a * guess_.per_token;
  cost_.per_pair = b * guess_.per_pair;
}

}  // namespace nanovllm
