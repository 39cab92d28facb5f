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
  // How long a waiting rank spins before it sleeps: longer than ranks of a step are apart, far
  // shorter than a time slice.
  static constexpr std::chrono::microseconds kSpinTime{50};

  // may_spin: there is a CPU for each rank.
  CommunicatorGroup(int world_size, bool may_spin);
  virtual ~CommunicatorGroup() = default;
  int world_size() const { return static_cast<int>(values_.size()); }

  // The next two are collective: each rank calls them from its own thread, in the same order. They
  // throw Error(kInternal) if another rank has failed.

  // Makes `backend` this rank's: from now on its all_reduce() and the other ops for ranks are
  // collective. The group must live longer than the backend.
  virtual void join(int rank, Backend& backend) = 0;
  // The smallest of all ranks' values.
  int64_t min_over_ranks(int rank, int64_t value);

  // To be called when a rank has failed: the ranks that wait for it, here or in an op, are released
  // and throw, and so do all later calls. Any thread may call it.
  virtual void abort() { barrier_.abort(); }
  // Throws Error if a rank has failed, on the host or on its device, so that results so far may be
  // wrong. To be called when the device has computed them.
  virtual void check() { barrier_.check(); }

 protected:
  RankBarrier barrier_;

 private:
  std::vector<int64_t> values_;  // [world_size] what the ranks bring
};

}  // namespace nanovllm
