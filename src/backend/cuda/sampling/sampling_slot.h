// The host's end of a step of sampling, in pinned memory that steps use again and again.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/sampling/sampling_kernels.h"
#include "ops/backend.h"
#include "ops/sampling.h"

namespace nanovllm::cuda {

class SamplingSlot {
 public:
  SamplingSlot();
  ~SamplingSlot();
  SamplingSlot(const SamplingSlot&) = delete;
  SamplingSlot& operator=(const SamplingSlot&) = delete;

  // Waits until the device has done with what the slot held before and lays `rows` out.
  void fill(std::span<const SamplingRow> rows, int64_t vocab_size);

  // What fill() laid out, contiguously: parameters [R], the indices of the edited rows, their
  // lists.
  std::span<const char> rows_bytes() const { return {rows_data_, rows_size_}; }
  // Points `step` to it, where it lies at `rows_data`, and to the memory for the results.
  void describe(const char* rows_data, SamplingStep& step) const;
  std::span<const RowParams> params() const { return {params_, num_rows_}; }
  int num_edited() const { return num_edited_; }
  size_t num_list_entries() const { return num_entries_; }
  int max_logprobs() const { return max_logprobs_; }  // of all rows; -1 = no row wants any

  void record(cudaStream_t stream);  // the step has been enqueued
  void wait();                       // for the device
  void read(std::span<SamplingResult> results) const;

 private:
  void measure(std::span<const SamplingRow> rows);
  void fill_lists(const SamplingRow& row, int64_t vocab_size, RowParams& params, int32_t* lists);
  int fill_biases(const SamplingRow& row, int32_t* lists);

  cudaEvent_t done_ = nullptr;
  bool in_flight_ = false;
  std::unique_ptr<Buffer> rows_memory_, results_memory_;  // pinned
  size_t num_rows_ = 0;
  int num_edited_ = 0;
  size_t num_entries_ = 0;  // of the lists of all rows
  int max_logprobs_ = -1;
  char* rows_data_ = nullptr;
  size_t rows_size_ = 0;
  RowParams* params_ = nullptr;
  int32_t* token_ids_ = nullptr;
  int32_t* num_logprobs_ = nullptr;
  LogprobEntry* logprobs_ = nullptr;
  std::vector<std::pair<int32_t, float>> biases_;  // of a row, while they are added up by id
};

}  // namespace nanovllm::cuda
