// Sampling on the device: lays a step's rows out for the kernels (sampling_kernels.h), launches
// them, and keeps the memory that results come back through.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/sampling/mask_table.h"
#include "backend/cuda/sampling/sampling_kernels.h"
#include "ops/backend.h"

namespace nanovllm::cuda {

// Pinned host memory of one step in flight: what the kernels are told and what they answer.
class SamplingSlot;

// One for each backend; outlives its tickets.
class Sampler {
 public:
  // Allocates from `backend` and enqueues on `stream`; blocks may have so much shared memory.
  Sampler(Backend& backend, cudaStream_t stream, size_t shared_bytes);
  ~Sampler();

  // See Backend::sample.
  std::unique_ptr<SamplingTicket> sample(std::span<const SamplingRow> rows, Tensor logits,
                                         int32_t* sampled_ids, const int32_t* previous_ids);

 private:
  class Ticket;

  std::unique_ptr<SamplingSlot> take_slot();
  void give_back(std::unique_ptr<SamplingSlot> slot);
  // Device memory of at least so many bytes, larger than `buffer` has been until now if need be.
  void* grow(std::unique_ptr<Buffer>& buffer, size_t bytes);
  // Fills in the rest of the slot's step and enqueues the kernels.
  void launch(SamplingSlot& slot);

  Backend& backend_;
  const cudaStream_t stream_;
  const int64_t max_vocab_size_;
  MaskTable masks_;
  std::vector<std::unique_ptr<SamplingSlot>> free_slots_;
  std::unique_ptr<Buffer> stats_;
  std::unique_ptr<Buffer> raw_stats_;
  std::unique_ptr<Buffer> rows_;  // the slot's part that the device needs close by
  std::unique_ptr<Buffer> raw_logits_;
  std::unique_ptr<Buffer> sampled_ids_;  // where the caller wants none
};

}  // namespace nanovllm::cuda
