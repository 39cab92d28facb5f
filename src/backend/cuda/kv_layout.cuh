// The KV cache on the device: [block][K, V][kv_head][block_size][head_dim], so that one head's
// tokens of a block are one contiguous piece of block_size * head_dim elements.
#pragma once

#include <cstdint>

#include "ops/backend.h"

namespace nanovllm::cuda {

struct KvView {
  int num_kv_heads, head_dim, block_size;
  // Element offset of the vector of a slot (block * block_size + offset); is_value picks K or V.
  __host__ __device__ int64_t offset(int64_t slot, int head, int is_value) const {
    return offset_in_block(slot / block_size, static_cast<int>(slot % block_size), head, is_value);
  }
  __host__ __device__ int64_t offset_in_block(int64_t block, int token, int head,
                                              int is_value) const {
    return (((block * 2 + is_value) * num_kv_heads + head) * block_size + token) * head_dim;
  }
};

inline KvView view_of(const KvCacheSpec& spec) {
  return {spec.num_kv_heads, spec.head_dim, spec.block_size};
}

}  // namespace nanovllm::cuda
