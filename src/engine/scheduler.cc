#include "engine/scheduler.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace nanovllm {

bool by_arrival(const Sequence* a, const Sequence* b) {
  return std::tie(a->request_id, a->index) < std::tie(b->request_id, b->index);
}

bool by_priority(const Sequence* a, const Sequence* b) {
  return a->priority != b->priority ? a->priority < b->priority : by_arrival(a, b);
}

Scheduler::Scheduler(const EngineLimits& limits, BlockManager& blocks, SchedulingPolicy policy,
                     const StepTime& time)
    : limits_(limits), blocks_(blocks), policy_(policy), time_(time), waiting_(policy) {
  NANOVLLM_CHECK(limits.max_num_batched_tokens > 0 && limits.max_num_seqs > 0);
  running_.reserve(limits.max_num_seqs);
}

std::span<ScheduledSequence> Scheduler::schedule() {
  scheduled_.clear();
  prefills_.clear();
  preempted_.clear();
  StepBudget budget(limits_.max_num_batched_tokens, time_, running_);
  bool lacks_blocks = false;

  for (size_t i = 0; i < running_.size() && budget.has_tokens(); ++i) {
    Sequence& sequence = *running_[i];
    const int share = budget.share_of(sequence);
    if (share == 0) continue;
    const int num_new_tokens = make_room(sequence, share);
    if (num_new_tokens == 0) {
      lacks_blocks = true;
      break;
    }
    add_to_step(sequence, num_new_tokens);
    budget.spend(sequence, num_new_tokens);
  }

  // Nobody is let in while others are sent out or wait for blocks.
  if (!lacks_blocks && preempted_.empty()) let_in(budget);
  scheduled_.insert(scheduled_.end(), prefills_.begin(), prefills_.end());
  return scheduled_;
}

void Scheduler::let_in(StepBudget& budget) {
  int num_seats = limits_.max_num_seqs;
  if (blocks_.has_states()) num_seats = std::min(num_seats, blocks_.states().num_sequences());
  num_seats -= static_cast<int>(running_.size());
  int64_t num_set_aside = 0;  // blocks
  for (auto next = waiting_.begin();
       next != waiting_.end() && num_seats > 0 && budget.takes_prompts(); --num_seats) {
    Sequence& sequence = **next;
    sequence.hold_prompt();
    const int64_t num_blocks = blocks_.blocks_for(sequence.num_tokens());
    if (waits_for_text(sequence)) {
      sequence.drop_prompt();
      num_set_aside += num_blocks;
      ++next;
      continue;
    }
    if (num_set_aside > 0 && num_set_aside + num_blocks > blocks_.num_free_blocks()) break;
    if (!blocks_.allocate(sequence)) break;
    sequence.queue_node = waiting_.extract(next++);
    running_.insert(running_place(sequence), &sequence);
    sequence.status = SequenceStatus::kRunning;
    if (sequence.num_preemptions == 0) {
      sequence.num_cached_tokens =
          std::min(sequence.num_computed_tokens, sequence.num_prompt_tokens);
    }
    const int num_new_tokens = make_room(sequence, budget.share_of(sequence));
    add_to_step(sequence, num_new_tokens);
    budget.spend(sequence, num_new_tokens);
  }
}

// If so, the step that computes the beginning ends where its state is left. Nobody waits for one
// that is served after it: that one might wait for its blocks.
bool Scheduler::waits_for_text(Sequence& sequence) {
  const Sequence* ahead = nullptr;
  int longest = 0;
  for (const Sequence* running : running_) {
    if (policy_(&sequence, running)) break;
    const int to_come = blocks_.num_tokens_to_come(sequence, *running);
    if (to_come > longest) {
      longest = to_come;
      ahead = running;
    }
  }
  if (ahead == nullptr || longest <= blocks_.num_tokens_found(sequence)) return false;
  const auto part = std::ranges::find(prefills_, ahead, &ScheduledSequence::sequence);
  if (part != prefills_.end()) {
    part->num_new_tokens = blocks_.num_tokens_to_boundary(*ahead, part->num_new_tokens, longest);
  }
  return true;
}

void Scheduler::advance(std::span<const ScheduledSequence> scheduled) {
  for (const auto& [sequence, num_new_tokens] : scheduled) {
    sequence->num_computed_tokens += num_new_tokens;
    blocks_.advance(*sequence);
    if (sequence->num_computed_tokens >= sequence->num_tokens()) ++sequence->num_pending_tokens;
  }
}

// Makes room for the sequence's next tokens, for fewer than it might compute where blocks are few
// or a state is to be kept, and returns for how many. For the first of them it preempts the last; 0
// when that was itself, or when steps in flight may give back what is missing.
int Scheduler::make_room(Sequence& sequence, int num_new_tokens) {
  num_new_tokens = blocks_.num_tokens_to_state(sequence, num_new_tokens);
  const int num_computed = sequence.num_computed_tokens;
  while (!blocks_.reserve(sequence, num_computed + num_new_tokens)) {
    const int with_room = blocks_.num_tokens_with_room(sequence, num_computed + num_new_tokens);
    if (with_room > num_computed) {
      num_new_tokens = with_room - num_computed;
      continue;
    }
    if (blocks_.may_give_back(sequence)) return 0;
    Sequence* last = running_.back();
    preempt(*last);
    preempted_.push_back(last);
    if (last == &sequence) return 0;
  }
  return num_new_tokens;
}

void Scheduler::add_to_step(Sequence& sequence, int num_new_tokens) {
  (num_new_tokens == 1 ? scheduled_ : prefills_).push_back({&sequence, num_new_tokens});
}

void Scheduler::add(std::span<Sequence* const> sequences) {
  SequenceQueue added(sequences.begin(), sequences.end(), policy_);
  for (Sequence* sequence : sequences) {
    NANOVLLM_CHECK(sequence->status == SequenceStatus::kNew);
    sequence->status = SequenceStatus::kWaiting;
  }
  // New requests mostly belong at the end, which is found immediately.
  while (!added.empty()) waiting_.insert(waiting_.end(), added.extract(added.begin()));
}

void Scheduler::preempt(Sequence& sequence) {
  NANOVLLM_CHECK(sequence.status == SequenceStatus::kRunning);
  blocks_.deallocate(sequence);
  sequence.drop_prompt();
  sequence.draft_ids.clear();
  ++sequence.num_preemptions;
  sequence.status = SequenceStatus::kWaiting;
  running_.erase(running_place(sequence));
  waiting_.insert(std::move(sequence.queue_node));
}

// Where it is, or belongs.
std::vector<Sequence*>::iterator Scheduler::running_place(Sequence& sequence) {
  if (running_.empty() || policy_(running_.back(), &sequence)) return running_.end();
  return std::lower_bound(running_.begin(), running_.end(), &sequence, policy_);
}

void Scheduler::finish(Sequence& sequence) {
  if (sequence.status == SequenceStatus::kRunning) {
    blocks_.deallocate(sequence);
    running_.erase(running_place(sequence));
    sequence.queue_node = {};
  } else if (sequence.status == SequenceStatus::kWaiting) {
    waiting_.erase(&sequence);
  }
  sequence.drop_prompt();
  sequence.status = SequenceStatus::kFinished;
}

}  // namespace nanovllm
