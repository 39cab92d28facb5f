#include "base/rank_barrier.h"

#include "base/check.h"
#include "base/spin_wait.h"

namespace nanovllm {

void RankBarrier::arrive_and_wait() {
  // Before looking at aborted_: either that is seen, or the round that abort() changes is this one.
  const uint32_t round = round_.load(std::memory_order_acquire);
  if (!is_aborted()) {
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_ranks_) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.fetch_add(1, std::memory_order_release);
      round_.notify_all();
    } else {
      wait_for_change(round_, round, spin_time_);
    }
  }
  check();
}

void RankBarrier::check() const {
  if (!is_aborted()) return;
  throw_error(ErrorCode::kInternal, "another rank of the tensor-parallel group has failed");
}

void RankBarrier::abort() {
  aborted_.store(true, std::memory_order_release);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
}

}  // namespace nanovllm
