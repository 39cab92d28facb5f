// Deals the rows of a ragged batch to threads, by sequence and key head, for the gated delta rule.
#pragma once

#include <vector>

#include "backend/cpu/cpu_features.h"
#include "backend/cpu/host_memory.h"
#include "backend/cpu/recurrent/delta_task.h"
#include "backend/cpu/thread_pool.h"
#include "ops/backend.h"

namespace nanovllm {

// Keeps its memory from call to call. For one caller at a time.
class GatedDeltaRule {
 public:
  GatedDeltaRule(ThreadPool& pool, Isa isa) : pool_(pool), isa_(isa) {}

  // Backend::gated_delta. Throws Error(kOutOfMemory) when there is none for scratch.
  void run(Tensor out, Tensor in, const GatedDeltaParams& params, const StateCache& cache,
           const ForwardBatch& batch);

 private:
  ThreadPool& pool_;
  const Isa isa_;
  HostScratch scratch_;
  std::vector<char> no_input_;  // zeros
};

}  // namespace nanovllm
