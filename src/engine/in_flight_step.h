// What a submitted step needs to be drawn, and collected.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "engine/request.h"
#include "engine/step_rows.h"
#include "nanovllm/llm_engine.h"

namespace nanovllm {

// std::map, because extract() and insert() move an entry to another map without allocating.
using Requests = std::map<uint64_t, std::unique_ptr<Request>>;

struct InFlightStep {
  struct Entry {
    Completion* completion;
    // Before the step.
    int num_computed_tokens;
    // Drafts included.
    int num_new_tokens;
    int num_drafts;
    // The sequence's when the step was submitted. If it has more now, it was preempted meanwhile
    // and its blocks are no longer the ones that the step wrote to.
    int num_preemptions;
    bool sampled;
    // See SequenceInput.
    int pending_from;

    // What it draws first, as an index of the completion's tokens.
    int first_position() const { return num_computed_tokens + num_new_tokens - num_drafts; }
    // How many ids before that are not known yet.
    int num_pending() const;
    // Whether it computes the token drawn last, not a part of a prompt.
    bool is_decode() const;
  };

  // Whether some row depends on ids that the step before it still draws.
  bool needs_ids() const;
  // One for each draw. Of what has ended meanwhile they are drawn for nobody.
  void add_rows(StepRows& rows) const;
  // Adds its tokens, and what it computed of each sequence.
  void count(StepStats& counts, std::vector<ScheduledRequest>& schedule) const;

  std::vector<Entry> entries;
  bool is_drawn = false;
  Clock::time_point submitted_at;
  // What a model took to guess drafts, between that time and the forward pass.
  double guessing_seconds = 0;
  // At submission.
  int num_running = 0, num_waiting = 0, num_used_blocks = 0, num_used_states = 0;
  // Requests that ended while the step ran. They live until it is collected, because entries
  // point to them.
  Requests ended;
};

}  // namespace nanovllm
