// The host's end of a step of sampling, in pinned memory that steps use again and again.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/sampling/mask_table.h"
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

  // Waits until the device has done with what the slot held before and lays `rows` out. Their masks
  // get places in `masks`.
  void fill(std::span<const SamplingRow> rows, int64_t vocab_size, MaskTable& masks);

  // What fill() laid out, contiguously: parameters [R], the indices of the edited rows, their
  // lists.
  std::span<const char> rows_bytes() const { return {rows_data_, rows_size_}; }
  // What fill() says of it, and the memory for the results; the rest is the caller's to fill in.
  // A logprobs_stride of 0: no row wants any.
  SamplingStep& step() { return step_; }
  // Points the step to what fill() laid out, where it lies at `rows_data`.
  void place_rows(const char* rows_data);
  // Those of the rows' masks that are not in the table yet: to be uploaded before anything else.
  const MaskUpload& mask_upload() const { return mask_upload_; }
  std::span<const RowParams> params() const { return {params_, num_rows()}; }
  size_t num_list_entries() const { return num_entries_; }

  void record(cudaStream_t stream);  // the step has been enqueued
  void wait();                       // for the device
  void read(std::span<SamplingResult> results) const;

 private:
  size_t num_rows() const { return static_cast<size_t>(step_.num_rows); }
  size_t mask_words() const { return static_cast<size_t>(step_.num_blocks) * kMaskWords; }
  void measure(std::span<const SamplingRow> rows, MaskTable& masks);
  int32_t place_mask(const SamplingRow& row, MaskTable& masks);
  void fill_lists(const SamplingRow& row, RowParams& params, int32_t* lists);
  int fill_biases(const SamplingRow& row, int32_t* lists);

  cudaEvent_t done_ = nullptr;
  bool in_flight_ = false;
  std::unique_ptr<Buffer> rows_memory_, masks_memory_, results_memory_;  // pinned
  SamplingStep step_;
  size_t num_entries_ = 0;  // of the lists of all rows
  char* rows_data_ = nullptr;
  size_t rows_size_ = 0;
  RowParams* params_ = nullptr;
  MaskUpload mask_upload_;
  uint32_t* mask_words_ = nullptr;  // MaskUpload::words
  int32_t* mask_places_ = nullptr;
  std::vector<std::pair<int32_t, float>> biases_;  // of a row, while they are added up by id
};

}  // namespace nanovllm::cuda
