// Where a token's keys and values lie: a block holds K then V, each [num_kv_heads, block_size,
// head_dim].
#pragma once

#include "ops/backend.h"

namespace nanovllm {

inline int64_t kv_half_block(const KvCacheSpec& spec) {  // elements
  return int64_t{spec.num_kv_heads} * spec.block_size * spec.head_dim;
}

// Index of element 0 of a token's key; its value is kv_half_block() further on.
inline int64_t kv_index(const KvCacheSpec& spec, int64_t slot, int head) {
  const int64_t block = slot / spec.block_size;
  const int64_t offset = slot % spec.block_size;
  return block * 2 * kv_half_block(spec) +
         (int64_t{head} * spec.block_size + offset) * spec.head_dim;
}

}  // namespace nanovllm
