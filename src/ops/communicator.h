// What the ranks of a tensor-parallel group share; what they exchange are ops of their backends.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "base/rank_barrier.h"
#include "ops/backend.h"

namespace nanovllm {

// The ranks themselves: threads of this process, each with a backend of its own. Made by
// make_communicator_group (backend/registry.h).
class CommunicatorGroup {
 public:
  // How long ranks look for each other before they sleep: longer than the ranks of a step are
  // apart, far shorter than a time slice.
  static constexpr std::chrono::microseconds kSpinTime{50};

  CommunicatorGroup(int world_size, bool may_spin);
  virtual ~CommunicatorGroup() = default;
  int world_size() const { return static_cast<int>(values_.size()); }

  // Each rank calls the following from its own thread, all of them the same ones in the same order.
  // They throw Error(kInternal) when another rank has failed.

  // Makes `backend` this rank's: from now on its all_reduce() and its kin are collective, and the
  // group outlives it.
  virtual void join(int rank, Backend& backend) = 0;
  // The smallest of the values that the ranks bring.
  int64_t min_over_ranks(int rank, int64_t value);

  // A rank has failed: whoever waits for it, here or in an op, is released and throws, as does all
  // that is called later. Any thread may call it.
  virtual void abort() { barrier_.abort(); }
  // Throws Error when the results of the calls so far are no good because a rank has failed, on its
  // device as well. To be called when the device is done with them.
  virtual void check() { barrier_.check(); }

 protected:
  RankBarrier barrier_;

 private:
  std::vector<int64_t> values_;  // [world_size] what the ranks bring
};

}  // namespace nanovllm
