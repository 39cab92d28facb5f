#include "engine/in_flight_step.h"

#include <algorithm>

namespace nanovllm {

int InFlightStep::Entry::num_pending() const {
  return first_position() - completion->num_prompt_tokens -
         static_cast<int>(completion->output().size());
}

bool InFlightStep::Entry::is_decode() const {
  return sampled && num_new_tokens - num_drafts == 1 &&
         num_computed_tokens >= completion->num_prompt_tokens;
}

bool InFlightStep::needs_ids() const {
  return std::ranges::any_of(entries, [](const Entry& entry) {
    return entry.sampled &&
           entry.completion->request->needs_ids(*entry.completion, entry.num_pending());
  });
}

void InFlightStep::add_rows(StepRows& rows) const {
  for (const Entry& entry : entries) {
    if (!entry.sampled) continue;
    const Completion& completion = *entry.completion;
    if (completion.finish_reason != FinishReason::kNone) {
      for (int i = 0; i <= entry.num_drafts; ++i) rows.add({.temperature = 0});
      continue;
    }
    completion.request->add_rows(completion, entry.first_position(), entry.num_drafts,
                                 entry.num_pending() > 0 ? entry.pending_from : -1, rows);
  }
}

void InFlightStep::count(StepStats& counts, std::vector<ScheduledRequest>& schedule) const {
  schedule.reserve(entries.size());  // nothing below can throw
  for (const Entry& entry : entries) {
    const bool decode = entry.is_decode();
    (decode ? counts.num_decode_tokens : counts.num_prefill_tokens) += entry.num_new_tokens;
    schedule.push_back({.request_id = entry.completion->request_id,
                        .index = entry.completion->index,
                        .num_computed_tokens = entry.num_computed_tokens,
                        .num_new_tokens = entry.num_new_tokens,
                        .num_cached_tokens = entry.completion->num_cached_tokens,
                        .sampled = entry.sampled,
                        .decode = decode});
  }
}

}  // namespace nanovllm
