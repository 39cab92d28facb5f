// Query and key normalisation, rotary embedding and the store into the KV cache.
#include <cstring>
#include <vector>

#include "backend/cpu/attention/kv_layout.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/layer/rows.h"

namespace nanovllm {
namespace {

// One token's place in a KV head's part of a block.
struct Slot {
  char* key_tile;
  char* value_tile;
  int token;  // in the tiles
};

Slot find_slot(const KvCache& cache, const KvLayout& layout, int64_t slot, int head) {
  const int64_t block = slot / cache.spec.block_size;
  const int64_t offset = slot % cache.spec.block_size;
  char* part = static_cast<char*>(cache.data) + block * layout.block + head * layout.head;
  const int64_t tile = offset / kKvTile;
  return {part + tile * layout.key_tile, part + layout.values + tile * layout.value_tile,
          static_cast<int>(offset % kKvTile)};
}

// Pair: what a key tile keeps together for a token, two bfloat16 or one float.
template <typename Pair>
void store_key(const Slot& slot, const void* key, int num_pairs) {
  const auto* from = static_cast<const Pair*>(key);
  Pair* to = reinterpret_cast<Pair*>(slot.key_tile) + slot.token;
  for (int i = 0; i < num_pairs; ++i) to[i * kKvTile] = from[i];
}

// kTokens: how many tokens' values of a dimension lie together, two in bfloat16 or one in float.
template <typename Value, int kTokens>
void store_value(const Slot& slot, const void* value, int dim, int padded_dim) {
  const auto* from = static_cast<const Value*>(value);
  Value* to = reinterpret_cast<Value*>(slot.value_tile) +
              slot.token / kTokens * kTokens * padded_dim + slot.token % kTokens;
  for (int i = 0; i < dim; ++i) to[i * kTokens] = from[i];
}

void store_token(const Slot& slot, const void* key, const void* value, const KvCacheSpec& spec,
                 int padded_dim) {
  if (spec.dtype == DType::kBFloat16) {
    store_key<uint32_t>(slot, key, spec.head_dim / 2);
    store_value<uint16_t, 2>(slot, value, spec.head_dim, padded_dim);
  } else {
    store_key<uint32_t>(slot, key, spec.head_dim);
    store_value<uint32_t, 1>(slot, value, spec.head_dim, padded_dim);
  }
}

// Attention multiplies the values of tokens that a row does not see by 0, which must not meet an
// infinity that another request left: the first token of a tile clears the values of those that
// are not stored in this step. Later steps overwrite them in order.
void clear_unwritten(const Slot& slot, const ForwardBatch& batch, int64_t t,
                     const KvCacheSpec& spec, int padded_dim) {
  int written = 1;
  while (written < kKvTile && t + written < batch.num_tokens &&
         batch.slot_mapping[t + written] == batch.slot_mapping[t] + written) {
    ++written;
  }
  const size_t element = size_of(spec.dtype);
  const int together = spec.dtype == DType::kBFloat16 ? 2 : 1;  // tokens
  if (written % together != 0) {
    auto* pairs = reinterpret_cast<uint16_t*>(slot.value_tile);
    for (int d = 0; d < spec.head_dim; ++d) {
      pairs[value_element(spec.dtype, padded_dim, written, d)] = 0;
    }
    ++written;
  }
  const size_t token_bytes = static_cast<size_t>(padded_dim) * element;
  std::memset(slot.value_tile + written * token_bytes, 0, (kKvTile - written) * token_bytes);
}

}  // namespace

size_t CpuBackend::kv_block_bytes(const KvCacheSpec& spec) const {
  return static_cast<size_t>(KvLayout(spec).block);
}

void CpuBackend::qk_norm_rope_store(Tensor qkv, int num_heads, const RopeParams& rope,
                                    const KvCache& cache, const ForwardBatch& batch) {
  const KvCacheSpec& spec = cache.spec;
  NANOVLLM_CHECK(qkv.dtype == spec.dtype);
  NANOVLLM_CHECK(spec.head_dim % 8 == 0 && spec.block_size % kKvTile == 0);
  NANOVLLM_CHECK(rope.rotary_dim % 2 == 0 && rope.rotary_dim <= spec.head_dim);
  const RowKernels kernels = row_kernels(isa_, qkv.dtype);
  const KvLayout layout(spec);
  const int dim = spec.head_dim;
  const size_t head_bytes = static_cast<size_t>(dim) * size_of(qkv.dtype);
  const auto turn = [&](void* out, const void* head, const float* norm, int64_t t) {
    const float* cos_sin = rope.cos_sin.f32() + int64_t{batch.positions[t]} * rope.rotary_dim;
    kernels.norm_rope(out, head, dim, norm, rope.norm_eps, cos_sin, rope.rotary_dim);
  };
  for_rows(pool_, batch.num_tokens, qkv.row_size(), [&](int64_t begin, int64_t end) {
    std::vector<char> key(head_bytes);
    for (int64_t t = begin; t < end; ++t) {
      char* head = static_cast<char*>(row_of(qkv, t));
      for (int h = 0; h < num_heads; ++h, head += head_bytes) turn(head, head, rope.q_norm, t);
      const int64_t slot_index = batch.slot_mapping[t];
      if (slot_index < 0) continue;
      for (int h = 0; h < spec.num_kv_heads; ++h, head += head_bytes) {
        const Slot slot = find_slot(cache, layout, slot_index, h);
        turn(key.data(), head, rope.k_norm, t);
        store_token(slot, key.data(), head + head_bytes * spec.num_kv_heads, spec,
                    layout.padded_dim);
        if (slot.token == 0) clear_unwritten(slot, batch, t, spec, layout.padded_dim);
      }
    }
  });
}

}  // namespace nanovllm
