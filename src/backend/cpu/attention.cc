// Attention over the paged KV cache.
#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kv_layout.h"
#include "backend/cpu/scalar.h"

namespace nanovllm {
namespace {

struct Context {
  Tensor out, qkv;
  const KvCache& cache;
  const AttentionParams& params;
  const ForwardBatch& batch;
};

// One head of the token in row t, at `position` of sequence s.
void attend(const Context& c, int s, int64_t t, int position, int h) {
  const KvCacheSpec& spec = c.cache.spec;
  const int dim = spec.head_dim;
  const int kv_head = h / (c.params.num_heads / spec.num_kv_heads);
  const int64_t q = t * c.qkv.row_size() + int64_t{h} * dim;
  const Tensor kv(c.cache.data, spec.dtype, {1});
  const int first = c.params.window > 0 ? std::max(0, position - c.params.window + 1) : 0;
  const auto key = [&](int p) {
    const int64_t block =
        c.batch.block_table[int64_t{s} * c.batch.block_table_stride + p / spec.block_size];
    return kv_index(spec, block * spec.block_size + p % spec.block_size, kv_head);
  };
  std::vector<float> scores;
  float largest = -INFINITY, sum = 0;
  for (int p = first; p <= position; ++p) {
    float dot = 0;
    for (int i = 0; i < dim; ++i) dot += load(c.qkv, q + i) * load(kv, key(p) + i);
    dot *= c.params.scale;
    if (c.params.soft_cap > 0) dot = c.params.soft_cap * std::tanh(dot / c.params.soft_cap);
    scores.push_back(dot);
    largest = std::max(largest, dot);
  }
  for (float& score : scores) sum += score = std::exp(score - largest);
  for (int i = 0; i < dim; ++i) {
    float value = 0;
    for (int p = first; p <= position; ++p)
      value += scores[p - first] * load(kv, key(p) + kv_half_block(spec) + i);
    store(c.out, (t * c.params.num_heads + h) * dim + i, value / sum);
  }
}

}  // namespace

void CpuBackend::paged_attention(Tensor out, Tensor qkv, const KvCache& cache,
                                 const AttentionParams& params, const ForwardBatch& batch) {
  const Context context{out, qkv, cache, params, batch};
  for (int s = 0; s < batch.num_seqs; ++s) {
    const int begin = batch.query_start_loc[s], end = batch.query_start_loc[s + 1];
    pool_.parallel_for(int64_t{end - begin} * params.num_heads, [&](int64_t task, int) {
      const int t = begin + static_cast<int>(task / params.num_heads);
      attend(context, s, t, batch.seq_lens[s] - (end - t),
             static_cast<int>(task % params.num_heads));
    });
  }
}

}  // namespace nanovllm
