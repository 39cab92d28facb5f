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
// flops a second of a GPU that does not tell its clock. Nobody learns how wrong it is, and chunks
// that are too short cost less than halts that are too long.
constexpr double kUntoldFlops = 2e13;

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
  const double products = kProductShare * (speed.flops > 0 ? speed.flops : kUntoldFlops);
  const double attention =
      kAttentionShare * (speed.attention_flops > 0 ? speed.attention_flops : kUntoldFlops);
  return {.per_token = work.flops_per_token / products + work.window_flops_per_token / attention,
          .per_pair = work.flops_per_seen_token / attention,
          .per_seen_token =
              speed.bytes > 0 ? work.kv_bytes_per_seen_token / (kMemoryShare * speed.bytes) : 0};
}

StepCost guessed_step_cost(const StackWork& work) {
  return {.per_token = (work.flops_per_token + work.window_flops_per_token) / kGuessedFlops,
          .per_pair = work.flops_per_seen_token / kGuessedFlops,
          .is_guess = true};
}

}  // namespace nanovllm
