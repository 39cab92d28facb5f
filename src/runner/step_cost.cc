#include "runner/step_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nanovllm {

namespace {

// Shares of an H100's and an H200's peaks that prompts and decodes reach (docs/benchmarks.md).
constexpr double kProductShare = 0.6, kAttentionShare = 0.5, kMemoryShare = 0.8;
// flops a second of some CPU. The first steps tell how wrong it is.
constexpr double kGuessedFlops = 2e11;

}  // namespace

double StepCost::seconds(int num_new_tokens, int context) const {
  const double seen = static_cast<double>(context) + num_new_tokens;
  return per_token * num_new_tokens +
         std::max(per_pair * pairs(num_new_tokens, context), per_seen_token * seen);
}

// Each of the two arguments of max is a bound of its own.
int StepCost::most_tokens(double seconds, int context) const {
  const double most = std::numeric_limits<int>::max();
  // x of (half * x + slope) * x = seconds
  const double half = per_pair / 2, slope = per_token + per_pair * (context + 0.5);
  const double root = slope + std::sqrt(slope * slope + 4 * half * std::max(seconds, 0.0));
  const double by_arithmetic = root > 0 ? 2 * std::max(seconds, 0.0) / root : most;
  const double rest = std::max(seconds - per_seen_token * context, 0.0);
  const double per_new_token = per_token + per_seen_token;
  const double by_reading = per_new_token > 0 ? rest / per_new_token : most;
  return static_cast<int>(std::min({by_arithmetic, by_reading, most}));
}

StepCost step_cost(const StackWork& work, const DeviceSpeed& speed) {
  if (speed.flops <= 0) {
    return {.per_token = work.flops_per_token / kGuessedFlops,
            .per_pair = work.flops_per_seen_token / kGuessedFlops,
            .is_guess = true};
  }
  return {.per_token = work.flops_per_token / (kProductShare * speed.flops),
          .per_pair = work.flops_per_seen_token / (kAttentionShare * speed.flops),
          .per_seen_token = work.kv_bytes_per_seen_token / (kMemoryShare * speed.bytes)};
}

}  // namespace nanovllm
