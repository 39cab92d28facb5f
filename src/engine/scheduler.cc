#include "engine/scheduler.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "base/check.h"

namespace nanovllm {

namespace {

bool arrived_before(const Sequence& a, const Sequence& b) {
  return std::tie(a.request_id, a.index) < std::tie(b.request_id, b.index);
}

}  // namespace

Scheduler::Scheduler(const EngineLimits& limits, BlockManager& blocks)
    : limits_(limits), blocks_(blocks) {
  NANOVLLM_CHECK(limits.max_num_batched_tokens > 0 && limits.max_num_seqs > 0);
}

std::span<const ScheduledSequence> Scheduler::schedule() {
  scheduled_.clear();
  prefills_.clear();
  preempted_.clear();
  int budget = limits_.max_num_batched_tokens;

  for (auto it = running_.begin(); it != running_.end() && budget > 0; ++it) {
    Sequence& sequence = **it;
    const int num_new_tokens = std::min(sequence.num_uncomputed_tokens(), budget);
    if (num_new_tokens == 0) continue;
    if (!reserve(sequence, num_new_tokens)) break;
    push(sequence, num_new_tokens);
    budget -= num_new_tokens;
  }

  // Nobody is let in while others are sent out.
  while (preempted_.empty() && !waiting_.empty() && budget > 0 &&
         std::ssize(running_) < limits_.max_num_seqs) {
    Sequence& sequence = *waiting_.front();
    sequence.hold_prompt();
    if (!blocks_.allocate(sequence)) break;
    running_.splice(running_.end(), waiting_, waiting_.begin());
    sequence.status = SequenceStatus::kRunning;
    if (sequence.num_preemptions == 0) {
      sequence.num_cached_tokens =
          std::min(sequence.num_computed_tokens, sequence.num_prompt_tokens);
    }
    const int num_new_tokens = std::min(sequence.num_uncomputed_tokens(), budget);
    push(sequence, num_new_tokens);
    budget -= num_new_tokens;
  }

  scheduled_.insert(scheduled_.end(), prefills_.begin(), prefills_.end());
  return scheduled_;
}

void Scheduler::advance(std::span<const ScheduledSequence> scheduled) {
  for (const auto& [sequence, num_new_tokens] : scheduled) {
    sequence->num_computed_tokens += num_new_tokens;
    if (sequence->num_computed_tokens == sequence->num_tokens()) ++sequence->num_pending_tokens;
  }
}

// Makes room for the sequence's next tokens by preempting the latest; false when that was itself.
bool Scheduler::reserve(Sequence& sequence, int num_new_tokens) {
  while (!blocks_.append(sequence, sequence.num_computed_tokens + num_new_tokens)) {
    Sequence* latest = running_.back();
    preempt(*latest);
    preempted_.push_back(latest);
    if (latest == &sequence) return false;
  }
  return true;
}

void Scheduler::push(Sequence& sequence, int num_new_tokens) {
  (num_new_tokens == 1 ? scheduled_ : prefills_).push_back({&sequence, num_new_tokens});
}

void Scheduler::add(std::list<Sequence*> siblings) noexcept {
  if (siblings.empty()) return;
  const auto place = waiting_place(*siblings.front());
  for (auto it = siblings.begin(); it != siblings.end(); ++it) {
    NANOVLLM_CHECK((*it)->status == SequenceStatus::kNew);
    (*it)->status = SequenceStatus::kWaiting;
    (*it)->queue_position = it;  // still valid in waiting_
  }
  waiting_.splice(place, siblings);
}

void Scheduler::preempt(Sequence& sequence) {
  NANOVLLM_CHECK(sequence.status == SequenceStatus::kRunning);
  blocks_.deallocate(sequence);
  sequence.drop_prompt();
  ++sequence.num_preemptions;
  sequence.status = SequenceStatus::kWaiting;
  waiting_.splice(waiting_place(sequence), running_, sequence.queue_position);
}

// New requests belong at the end; those that ran before, and completions that waited for their
// prompt, near the front.
std::list<Sequence*>::iterator Scheduler::waiting_place(const Sequence& sequence) {
  if (waiting_.empty() || arrived_before(*waiting_.back(), sequence)) return waiting_.end();
  return std::find_if(waiting_.begin(), waiting_.end(),
                      [&](const Sequence* other) { return arrived_before(sequence, *other); });
}

void Scheduler::finish(Sequence& sequence) {
  if (sequence.status == SequenceStatus::kRunning) {
    blocks_.deallocate(sequence);
    running_.erase(sequence.queue_position);
  } else if (sequence.status == SequenceStatus::kWaiting) {
    waiting_.erase(sequence.queue_position);
  }
  sequence.drop_prompt();
  sequence.status = SequenceStatus::kFinished;
}

}  // namespace nanovllm
