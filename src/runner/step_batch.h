// Turns a step as the engine describes it into arrays as the kernels read them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ops/forward_batch.h"
#include "runner/decode_buckets.h"
#include "runner/step.h"

namespace nanovllm {

// Keeps its memory from step to step. Everything that goes to the device lies in one contiguous
// staging area, so that one copy a step takes it there; where an array begins depends on the sizes
// of the step alone, so that steps of equal sizes have equal addresses.
//
// If all sequences of a step have one new token, draw, and want no log-probabilities of prompts, it
// is padded to one of `buckets`. Sequences that only pad have one token of id 0 at position 0, no
// context (seq_lens 0) and no slot (-1): attention and recurrent layers do nothing for them, and
// their logits are not used.
class StepBatch {
 public:
  StepBatch(int block_size, DecodeBuckets buckets, std::span<int32_t> staging, int num_groups = 1)
      : block_size_(block_size),
        num_groups_(num_groups),
        buckets_(std::move(buckets)),
        staging_(staging) {}

  // What the largest step needs, in int32 elements.
  static size_t staging_size(int max_num_tokens, int max_num_seqs, int max_model_len,
                             int block_size, int num_groups = 1);

  // Reads all that `input` points to. The id of a pending token is written as the number
  // -1 - pending_from (see Backend::stage_batch).
  void build(const StepInput& input);
  // The rows of its draws. What they point to is read by Backend::sample, during the same
  // Runner::draw.
  void set_draws(std::span<const SamplingRow> rows);

  std::span<const int32_t> staging() const { return staging_.first(staging_size_); }
  // The batch; `staging` is where the device has its copy of the staging area.
  ForwardBatch forward_batch(const int32_t* staging) const;
  const std::optional<DecodeShape>& decode_shape() const { return decode_shape_; }

  // One for each row of logits that is needed: first the draws of all sequences, so that a draw's
  // number is that of its row, then the log-probabilities of prompts. The former hold nothing
  // before set_draws().
  std::span<const SamplingRow> sampling_rows() const { return sampling_rows_; }
  // Sets output.sequences to views of output.results, which are in the order of sampling_rows(). Of
  // a sequence with drafts: the draws up to and with the first that differs from its draft.
  void split_results(StepOutput& output) const;

 private:
  struct Layout {  // offsets in the staging area
    size_t token_ids = 0;
    size_t positions = 0;
    size_t slot_mapping = 0;
    size_t query_start_loc = 0;
    size_t seq_lens = 0;
    size_t block_table = 0;
    size_t state_slot = 0;
    size_t state_len = 0;
    size_t next_slot = 0;
    size_t log_slot = 0;
    size_t logits_rows = 0;
  };
  struct ResultCounts {  // of sampling_rows()
    int num_draws = 0;
    int num_prompt_logprobs = 0;
    int first_draft = 0;  // which token of the step it is
  };

  void measure(const StepInput& input);
  void place_arrays();
  void add_sequence(const SequenceInput& sequence, int index, int first_token);
  void add_blocks(const SequenceInput& sequence, int index, int first_token);
  void add_draws(const SequenceInput& sequence, int first_token);
  void add_prompt_logprobs(const SequenceInput& sequence, int first_token);
  void add_padding(int first);

  const int block_size_;
  const int num_groups_;
  const DecodeBuckets buckets_;
  const std::span<int32_t> staging_;
  size_t staging_size_ = 0;
  ForwardBatch sizes_;  // its pointers are null
  std::optional<DecodeShape> decode_shape_;
  Layout layout_;
  int num_draws_ = 0;
  std::vector<SamplingRow> sampling_rows_;
  std::vector<ResultCounts> result_counts_;  // of the sequences of the input
};

}  // namespace nanovllm
