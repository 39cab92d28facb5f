#include "cli/step_log.h"

#include <fmt/format.h>

#include <string>

#include "base/message.h"

namespace nanovllm::cli {
namespace {

std::string name(const ScheduledRequest& request) {
  return request.index > 0 ? fmt::format("{}.{}", request.request_id, request.index)
                           : fmt::format("{}", request.request_id);
}

}  // namespace

void log_step(int64_t number, const LLMEngine& engine) {
  const StepStats& stats = engine.last_step();
  std::string prefills, decodes;
  int num_prefills = 0, num_decodes = 0;
  for (const ScheduledRequest& request : engine.last_schedule()) {
    if (request.decode) {
      ++num_decodes;
      decodes += fmt::format(" {}", name(request));
      continue;
    }
    ++num_prefills;
    prefills += fmt::format(" {}:{}+{}", name(request), request.num_computed_tokens,
                            request.num_new_tokens);
    if (request.num_cached_tokens > 0) {
      prefills += fmt::format("(cached {})", request.num_cached_tokens);
    }
  }
  if (num_prefills + num_decodes == 0) return;
  print_message(
      "step {}: {} prefill ({}), {} decode; blocks {}/{}{};{}{}{}{}{}\n", number, num_prefills,
      counted(stats.num_prefill_tokens, "token"), num_decodes, stats.num_used_blocks,
      stats.num_total_blocks,
      stats.num_total_states > 0
          ? fmt::format(", states {}/{}", stats.num_used_states, stats.num_total_states)
          : "",
      prefills, num_decodes > 0 ? " |" : "", decodes,
      stats.num_draft_tokens > 0 ? fmt::format("; drafts: {} of {} tokens accepted",
                                               stats.num_accepted_tokens(), stats.num_draft_tokens)
                                 : "",
      stats.num_preemptions > 0 ? fmt::format("; preempted {}", stats.num_preemptions) : "");
}

}  // namespace nanovllm::cli
