// The ranks of a tensor-parallel group as threads that read each other's memory.
#pragma once

#include <memory>
#include <vector>

#include "ops/communicator.h"

namespace nanovllm {

class CpuCommunicatorGroup final : public CommunicatorGroup {
 public:
  explicit CpuCommunicatorGroup(int world_size);
  // `backend` is a CpuBackend; its threads share the work.
  std::unique_ptr<Communicator> join(int rank, Backend& backend) override;

 private:
  class Rank;
  std::vector<Tensor> tensors_;  // [world_size] what each rank brings to the call in progress
};

}  // namespace nanovllm
