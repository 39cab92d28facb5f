// The sizes that decode steps are padded to, so that few CUDA graphs serve all of them.
#pragma once

#include <compare>
#include <optional>
#include <vector>

namespace nanovllm {

// The sizes of a padded step, in which every sequence has one new token and wants its logits.
struct DecodeShape {
  int num_seqs = 0;
  // Entries in a row of the block table, and the tokens for which they have room.
  int block_table_stride = 0;
  int max_seq_len = 0;

  // clang-tidy 14 sees a null pointer in the default's comparisons.
  auto operator<=>(const DecodeShape&) const = default;  // NOLINT(modernize-use-nullptr)
};

// A CUDA graph has fixed sizes, so decode steps are padded to one of a few: 1, 2, 4, 8 or a
// multiple of 16 sequences, as in nano-vLLM, and max_num_seqs itself. Steps of more than 512
// sequences are not padded. Rows of the block table have room for 64 blocks or, if a sequence needs
// more, for 128, 256, ...: what is uploaded is at most about twice what is needed.
class DecodeBuckets {
 public:
  // Pads no step.
  DecodeBuckets() = default;
  // Steps of up to `max_num_seqs` sequences of up to `max_model_len` tokens.
  DecodeBuckets(int max_num_seqs, int max_model_len, int block_size);

  // The smallest shape for `num_seqs` sequences of which the longest has `num_blocks` blocks;
  // nullopt if no shape is large enough.
  std::optional<DecodeShape> find(int num_seqs, int num_blocks) const;
  const std::vector<int>& batch_sizes() const { return batch_sizes_; }  // ascending

 private:
  std::vector<int> batch_sizes_;
  int max_model_len_ = 0;
  int block_size_ = 0;
};

}  // namespace nanovllm
