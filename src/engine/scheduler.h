// Which sequences compute how many tokens in the next step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/block_manager.h"
#include "engine/sequence.h"
#include "engine/step_time.h"
#include "nanovllm/engine_info.h"

namespace nanovllm {

struct ScheduledSequence {
  Sequence* sequence = nullptr;
  int num_new_tokens = 0;
};

// By request id, then index.
bool by_arrival(const Sequence* a, const Sequence* b);
// By priority, equals by arrival.
bool by_priority(const Sequence* a, const Sequence* b);

// Serves sequences in the order of a policy, in steps in which each has its own number of tokens:
// running ones first, then waiting ones, long prompts in chunks, which are short beside those that
// decode (StepBudget) or where blocks are few. When blocks run out, the last of the running ones is
// preempted: it gives its blocks back and is computed again later. Every sequence that fits into
// the whole cache finishes, because the first running one can take the blocks of all others. One
// that needs a state waits for it before it runs. One that begins as another does which is served
// before it and is about to compute that beginning waits for it, with a seat and blocks set aside,
// while those behind it pass. Sequences belong to the caller and must not move in memory until
// finish(). Not thread-safe.
class Scheduler {
 public:
  Scheduler(const EngineLimits& limits, BlockManager& blocks, SchedulingPolicy policy = by_arrival,
            const StepTime& time = {});

  void add(Sequence& sequence) {
    Sequence* const one = &sequence;
    add(std::span(&one, 1));
  }
  // Queues all of them, or throws std::bad_alloc and queues none.
  void add(std::span<Sequence* const> sequences);
  // Ends a sequence wherever it is and takes its blocks back. No effect on one that has ended.
  void finish(Sequence& sequence);
  // Sends a running sequence back to the queue; everything it computed is computed again.
  void preempt(Sequence& sequence);

  // Chooses the sequences of the next step and reserves their blocks. Sequences with one new token
  // come first. The result is valid until the next call. It is empty if nothing can run before a
  // step in flight is collected.
  std::span<ScheduledSequence> schedule();
  // To be called when the schedule was handed to the runner: from now on its tokens count as
  // computed, and what it draws counts as a token whose id is pending.
  void advance(std::span<const ScheduledSequence> scheduled);

  // What is known by now of what steps cost.
  void set_cost(const StepCost& cost) { time_.cost = cost; }
  const StepTime& time() const { return time_; }

  // By the last schedule().
  std::span<Sequence* const> preempted() const { return preempted_; }
  // Both in the policy's order.
  const SequenceQueue& waiting() const { return waiting_; }
  std::span<Sequence* const> running() const { return running_; }

 private:
  void let_in(StepBudget& budget);
  bool waits_for_text(Sequence& sequence);
  int make_room(Sequence& sequence, int num_new_tokens);
  void add_to_step(Sequence& sequence, int num_new_tokens);
  std::vector<Sequence*>::iterator running_place(Sequence& sequence);

  const EngineLimits limits_;
  BlockManager& blocks_;
  const SchedulingPolicy policy_;
  StepTime time_;
  SequenceQueue waiting_;
  std::vector<Sequence*> running_;  // capacity for max_num_seqs, so that nothing allocates
  std::vector<ScheduledSequence> scheduled_;
  std::vector<ScheduledSequence> prefills_;  // appended to the decodes at the end of schedule()
  std::vector<Sequence*> preempted_;
};

}  // namespace nanovllm
