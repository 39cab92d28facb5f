// Which sequences compute how many tokens in the next step.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "engine/block_manager.h"
#include "engine/sequence.h"
#include "nanovllm/engine_info.h"

namespace nanovllm {

struct ScheduledSequence {
  Sequence* sequence = nullptr;
  int num_new_tokens = 0;
};

// First come, first served, in one ragged step: running sequences first, then waiting ones, long
// prompts in chunks. When blocks run out, the running sequence admitted last gives its own back and
// is recomputed later. A sequence that fits into the cache alone always comes to its end: the first
// running one can take the blocks of all others. Sequences belong to the caller and stay where they
// are while they are known here. Not thread-safe.
class Scheduler {
 public:
  Scheduler(const EngineLimits& limits, BlockManager& blocks);

  // Queues a sequence by its arrival: request id, then index.
  void add(Sequence& sequence) { add(std::list<Sequence*>{&sequence}); }
  // Queues sequences of one request, in order of index, at the place of the first. None that is
  // queued may belong between them.
  void add(std::list<Sequence*> siblings) noexcept;
  // Ends a sequence wherever it is and takes its blocks back; one that has ended stays so.
  void finish(Sequence& sequence);
  // Sends a running sequence back to the queue; everything it computed is computed again.
  void preempt(Sequence& sequence);

  // Chooses the next step, those with one new token first, and reserves its blocks. The result is
  // valid until the next call. Empty when nothing can run before a step in flight is collected.
  std::span<const ScheduledSequence> schedule();
  // The schedule was handed to the runner: its tokens count as computed, and what it samples counts
  // as a token whose id is pending.
  void advance(std::span<const ScheduledSequence> scheduled);

  std::span<Sequence* const> preempted() const { return preempted_; }  // by the last schedule()
  const std::list<Sequence*>& waiting() const { return waiting_; }
  const std::list<Sequence*>& running() const { return running_; }  // in order of admission

 private:
  bool reserve(Sequence& sequence, int num_new_tokens);
  void push(Sequence& sequence, int num_new_tokens);
  std::list<Sequence*>::iterator waiting_place(const Sequence& sequence);

  const EngineLimits limits_;
  BlockManager& blocks_;
  std::list<Sequence*> waiting_;
  std::list<Sequence*> running_;
  std::vector<ScheduledSequence> scheduled_;
  std::vector<ScheduledSequence> prefills_;  // put behind the decodes at the end of schedule()
  std::vector<Sequence*> preempted_;
};

}  // namespace nanovllm
