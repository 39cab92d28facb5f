#include "ops/communicator.h"

#include <algorithm>

namespace nanovllm {

CommunicatorGroup::CommunicatorGroup(int world_size, bool may_spin)
    : barrier_(world_size, may_spin ? kSpinTime : std::chrono::microseconds(0)),
      values_(world_size) {}

int64_t CommunicatorGroup::min_over_ranks(int rank, int64_t value) {
  values_[rank] = value;
  barrier_.arrive_and_wait();
  const int64_t result = *std::ranges::min_element(values_);
  barrier_.arrive_and_wait();  // before anybody brings the next value
  return result;
}

}  // namespace nanovllm
