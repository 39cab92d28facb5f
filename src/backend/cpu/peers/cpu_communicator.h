// The ranks of a tensor-parallel group as threads that read each other's memory.
#pragma once

#include <span>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/thread_pool.h"
#include "ops/communicator.h"

namespace nanovllm {

class CpuCommunicatorGroup final : public CommunicatorGroup {
 public:
  class Rank;
  explicit CpuCommunicatorGroup(int world_size);
  // `backend` is a CpuBackend; its threads share the work.
  void join(int rank, Backend& backend) override;

 private:
  std::vector<Tensor> tensors_;  // [world_size] what each rank brings to the call in progress
};

// What a backend that has joined a group does with the others.
class CpuCommunicatorGroup::Rank {
 public:
  Rank(CpuCommunicatorGroup& group, int rank, ThreadPool& pool, Isa isa)
      : group_(group), rank_(rank), pool_(pool), isa_(isa) {}
  int rank() const { return rank_; }
  int world_size() const { return group_.world_size(); }
  void all_reduce(Tensor x);
  void all_gather(Tensor out, Tensor x);

 private:
  std::span<const Tensor> exchange(Tensor x);

  CpuCommunicatorGroup& group_;
  const int rank_;
  ThreadPool& pool_;
  const Isa isa_;
};

}  // namespace nanovllm
