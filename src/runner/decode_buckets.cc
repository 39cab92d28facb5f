#include "runner/decode_buckets.h"

#include <algorithm>
#include <bit>

namespace nanovllm {
namespace {

// Larger steps gain nothing from a graph: their kernels take longer than their launches.
constexpr int kMaxNumSeqs = 512;
constexpr int kMinStride = 64;  // blocks

}  // namespace

DecodeBuckets::DecodeBuckets(int max_num_seqs, int max_model_len, int block_size)
    : max_model_len_(max_model_len), block_size_(block_size) {
  const int last = std::min(max_num_seqs, kMaxNumSeqs);
  for (int size = 1; size < last; size = size < 16 ? 2 * size : size + 16) {
    batch_sizes_.push_back(size);
  }
  batch_sizes_.push_back(last);
}

std::optional<DecodeShape> DecodeBuckets::find(int num_seqs, int num_blocks) const {
  const auto size = std::lower_bound(batch_sizes_.begin(), batch_sizes_.end(), num_seqs);
  if (size == batch_sizes_.end()) return std::nullopt;
  const int most = (max_model_len_ + block_size_ - 1) / block_size_;
  const auto wanted = static_cast<int>(std::bit_ceil(static_cast<unsigned>(num_blocks)));
  const int stride = std::min(std::max(wanted, kMinStride), most);
  return DecodeShape{.num_seqs = *size,
                     .block_table_stride = stride,
                     .max_seq_len = std::min(stride * block_size_, max_model_len_)};
}

}  // namespace nanovllm
