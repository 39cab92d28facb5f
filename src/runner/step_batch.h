// A step as the engine describes it, laid out as the kernels read it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/forward_batch.h"
#include "runner/step.h"

namespace nanovllm {

// Keeps its memory from step to step. Everything that goes to the device lies in one contiguous
// staging area, so that one copy a step takes it there; where an array begins depends on the sizes
// of the step alone, so that steps of equal sizes have equal addresses.
class StepBatch {
 public:
  explicit StepBatch(int block_size) : block_size_(block_size) {}

  // Reads all that `input` refers to but for the ids and biases that its sampling rows point to.
  void build(const StepInput& input);

  std::span<const int32_t> staging() const { return staging_; }
  // The batch whose arrays lie where the staging area was copied to (the CPU reads it in place).
  ForwardBatch forward_batch(const int32_t* staging) const;

  // One for each of the batch's logits_rows: of every sequence first the prompt's log-probabilities
  // in order, then the token to sample.
  std::span<const SamplingRow> sampling_rows() const { return sampling_rows_; }
  // Gives each sequence its share of `results`, which are in the order of sampling_rows().
  StepOutput collect(std::span<SamplingResult> results) const;

 private:
  struct Layout {  // offsets in the staging area
    size_t token_ids = 0;
    size_t positions = 0;
    size_t slot_mapping = 0;
    size_t query_start_loc = 0;
    size_t seq_lens = 0;
    size_t block_table = 0;
    size_t logits_rows = 0;
  };
  struct LogitsShare {
    int num_prompt_logprobs = 0;
    bool sample = false;
  };

  void measure(const StepInput& input);
  void add_sequence(const SequenceInput& sequence, int index, int first_token);
  void add_logits_rows(const SequenceInput& sequence, int first_token);

  const int block_size_;
  ForwardBatch sizes_;  // its pointers are empty
  Layout layout_;
  std::vector<int32_t> staging_;
  std::vector<SamplingRow> sampling_rows_;
  std::vector<LogitsShare> shares_;  // [num_seqs]
};

}  // namespace nanovllm
