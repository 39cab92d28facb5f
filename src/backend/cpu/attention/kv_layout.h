// Where keys and values lie in a block of the KV cache.
//
// A block is one part a KV head, one after the other. A part is block_size / 16 key tiles, then as
// many value tiles, each of 16 tokens:
//
//   bfloat16   key tile    [head_dim / 2][16 tokens][2 dims]
//              value tile  [8 token pairs][padded_dim][2 tokens]
//   float32    key tile    [head_dim][16 tokens]
//              value tile  [16 tokens][padded_dim]
//
// so that 64 bytes of keys are 16 tokens and 64 bytes of values 16 dimensions, in bfloat16 with the
// pairs that a dot product instruction sums: neither product of attention shuffles anything, and
// both read memory in order. padded_dim is head_dim rounded up to 16; the padding is never read
// into a result.
#pragma once

#include <cstdint>

#include "ops/backend.h"

namespace nanovllm {

inline constexpr int kKvTile = 16;  // tokens

// All in bytes.
struct KvLayout {
  int64_t key_tile = 0;
  int64_t value_tile = 0;
  int64_t values = 0;  // from a head's first key tile to its first value tile
  int64_t head = 0;    // from one KV head to the next
  int64_t block = 0;   // from one block to the next
  int padded_dim = 0;  // elements

  explicit KvLayout(const KvCacheSpec& spec) {
    const auto element = static_cast<int64_t>(size_of(spec.dtype));
    padded_dim = (spec.head_dim + 15) / 16 * 16;
    key_tile = kKvTile * element * spec.head_dim;
    value_tile = kKvTile * element * padded_dim;
    values = spec.block_size / kKvTile * key_tile;
    head = values + spec.block_size / kKvTile * value_tile;
    block = head * spec.num_kv_heads;
  }
};

// Element of a key tile, or of a value tile, that belongs to a token (0 .. 15) and a dimension.
inline int64_t key_element(DType dtype, int token, int dim) {
  return dtype == DType::kBFloat16 ? dim / 2 * 32 + token * 2 + dim % 2 : dim * 16 + token;
}
inline int64_t value_element(DType dtype, int padded_dim, int token, int dim) {
  return dtype == DType::kBFloat16
             ? (static_cast<int64_t>(token / 2) * padded_dim + dim) * 2 + token % 2
             : static_cast<int64_t>(token) * padded_dim + dim;
}

}  // namespace nanovllm
