// The sizes that uniform decode steps are padded to.
#pragma once

#include <optional>
#include <tuple>
#include <vector>

namespace nanovllm {

// Of a padded step: every sequence has one new token and wants its logits.
struct DecodeShape {
  int num_seqs = 0;
  int block_table_stride = 0;  // entries in a row of the block table
  int max_seq_len = 0;         // tokens that such a row has room for

  friend bool operator<(const DecodeShape& a, const DecodeShape& b) {
    return std::tie(a.num_seqs, a.block_table_stride, a.max_seq_len) <
           std::tie(b.num_seqs, b.block_table_stride, b.max_seq_len);
  }
};

// A CUDA graph has fixed sizes, so decode steps are padded to one of a few: 1, 2, 4, 8 and the
// multiples of 16 sequences, as in nano-vLLM. Block tables have room for 64 blocks, and twice as
// many when some sequence has more, so that what is uploaded is at most about twice what is needed.
class DecodeBuckets {
 public:
  // No step is padded.
  DecodeBuckets() = default;
  // Steps of up to `max_num_seqs` sequences of up to `max_model_len` tokens.
  DecodeBuckets(int max_num_seqs, int max_model_len, int block_size);

  // The smallest shape that holds `num_seqs` sequences of which the longest has `num_blocks`
  // blocks; none when there is none.
  std::optional<DecodeShape> find(int num_seqs, int num_blocks) const;
  const std::vector<int>& batch_sizes() const { return batch_sizes_; }  // ascending

 private:
  std::vector<int> batch_sizes_;
  int max_model_len_ = 0;
  int block_size_ = 0;
};

}  // namespace nanovllm
