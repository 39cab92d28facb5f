// Query and key normalisation, rotary embedding and the store into the KV cache.
#include <cmath>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kv_layout.h"
#include "backend/cpu/scalar.h"

namespace nanovllm {
namespace {

void normalise_and_rotate(std::vector<float>& head, const float* norm, float eps,
                          const float* cos_sin, int rotary_dim) {
  if (norm != nullptr) {
    float sum = 0;
    for (const float value : head) sum += value * value;
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(head.size()) + eps);
    for (size_t i = 0; i < head.size(); ++i) head[i] *= scale * norm[i];
  }
  const int half = rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cos_sin[i] - b * cos_sin[i + half];
    head[i + half] = b * cos_sin[i] + a * cos_sin[i + half];
  }
}

}  // namespace

size_t CpuBackend::kv_block_bytes(const KvCacheSpec& spec) const {
  return static_cast<size_t>(2 * kv_half_block(spec)) * size_of(spec.dtype);
}

void CpuBackend::qk_norm_rope_store(Tensor qkv, int num_heads, const RopeParams& rope,
                                    const KvCache& cache, const ForwardBatch& batch) {
  const KvCacheSpec& spec = cache.spec;
  const int dim = spec.head_dim;
  const Tensor kv(cache.data, spec.dtype, {1});
  pool_.parallel_for(batch.num_tokens, [&](int64_t t, int) {
    const float* cos_sin = rope.cos_sin.f32() + batch.positions[t] * rope.cos_sin.row_size();
    std::vector<float> head(static_cast<size_t>(dim));
    for (int h = 0; h < num_heads + 2 * spec.num_kv_heads; ++h) {
      const int64_t base = t * qkv.row_size() + int64_t{h} * dim;
      for (int i = 0; i < dim; ++i) head[i] = load(qkv, base + i);
      const int kv_head = h - num_heads;
      const bool is_value = kv_head >= spec.num_kv_heads;
      if (!is_value)
        normalise_and_rotate(head, kv_head < 0 ? rope.q_norm : rope.k_norm, rope.norm_eps, cos_sin,
                             rope.rotary_dim);
      if (kv_head < 0) {
        for (int i = 0; i < dim; ++i) store(qkv, base + i, head[i]);
      } else if (batch.slot_mapping[t] >= 0) {
        const int64_t at = kv_index(spec, batch.slot_mapping[t], kv_head % spec.num_kv_heads) +
                           (is_value ? kv_half_block(spec) : 0);
        for (int i = 0; i < dim; ++i) store(kv, at + i, head[i]);
      }
    }
  });
}

}  // namespace nanovllm
