// What the ops mean, in plain scalar code; all backends are tested against it.
//
// Inputs are host tensors of float32 or bfloat16. Sums run in double; results are float32 and not
// rounded to the act dtype, so that a test sees the whole error of the implementation. Nothing here
// is fast.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "ops/backend.h"
#include "ops/forward_batch.h"
#include "ops/tensor.h"

namespace nanovllm::reference {

// Element i of a float32, bfloat16 or float16 tensor.
float element(const Tensor& tensor, int64_t i);

// [T, H]: row ids[t] - first_id of table[V, H], zeros if there is no such row. Without a scale.
std::vector<float> embedding(std::span<const int32_t> ids, const Tensor& table, int32_t first_id);

// [T, H]: x / sqrt(mean(x^2) + eps) * weight; x float32 or act. Zhang and Sennrich, "Root Mean
// Square Layer Normalization" (2019).
std::vector<float> rms_norm(const Tensor& x, std::span<const float> weight, float eps);

// [T, H]: residual + scale * x, the first half of add_rms_norm.
std::vector<float> add(const Tensor& residual, const Tensor& x, float scale = 1);

// qkv[T, (Hq + 2 Hkv) * D] with q and k normalised over all of their heads, as in OLMo 2 (arXiv
// 2501.00656).
std::vector<float> norm_all_heads(const Tensor& qkv, const HeadsNormParams& norm);

// [T, N]: x[T, K] weight[N, K]^T + bias (empty = none).
std::vector<float> linear(const Tensor& x, const Tensor& weight, std::span<const float> bias);

// A KV cache without tiles: row `slot` of k and v is [num_kv_heads, head_dim].
struct PlainKvCache {
  int num_kv_heads = 0;
  int head_dim = 0;
  int block_size = 0;
  std::vector<float> k;  // [num_slots, num_kv_heads, head_dim]
  std::vector<float> v;  // [num_slots, num_kv_heads, head_dim]

  PlainKvCache(int kv_heads, int dim, int tokens_per_block, int num_blocks);
  int64_t row(int slot, int kv_head) const {  // index of its first element
    return (static_cast<int64_t>(slot) * num_kv_heads + kv_head) * head_dim;
  }
};

// Stores k and v of qkv[T, (Hq + 2 Hkv) * D] and returns the turned q as [T, Hq * D]. Rotary
// embedding: Su et al., "RoFormer" (2021), with the halves paired as in GPT-NeoX.
std::vector<float> qk_norm_rope_store(const Tensor& qkv, int num_heads, const RopeParams& rope,
                                      PlainKvCache& cache, const ForwardBatch& batch);

// [T, Hq * D]: softmax(scale q K^T) V over what each token may see; reads the q part of
// qkv[T, (Hq + 2 Hkv) * D]. Vaswani et al., "Attention Is All You Need" (2017); the soft cap is
// Gemma 2's.
std::vector<float> paged_attention(const Tensor& qkv, const PlainKvCache& cache,
                                   const AttentionParams& params, const ForwardBatch& batch);

// [T, Hv * Dv]: of in[T, q, k, v, z, b, a], the whole of a text, row by row from its beginning.
// Yang et al., "Gated Delta Networks" (2024), as in Qwen3-Next.
std::vector<float> gated_delta(const Tensor& in, const GatedDelta& core);

// [T, I]: activation(gate) * up of gate_up[T, 2 I]. SwiGLU and its kin: Shazeer, "GLU Variants
// Improve Transformer" (2020).
std::vector<float> act_and_mul(const Tensor& gate_up, Activation activation);
double act_and_mul(double gate, double up, Activation activation);

// Of one row's logits: the experts that it chooses, in the order of their choice, and their
// weights; see Routing.
std::vector<std::pair<int, double>> route(std::span<const double> logits, const Routing& routing);
// [T, H]: the mixture of x[T, H]; see Experts. The weights' pieces are bfloat16 or float32.
std::vector<float> experts(const Tensor& x, const Experts& experts);

// [R, H]: x[rows[r]].
std::vector<float> gather_rows(const Tensor& x, std::span<const int32_t> rows);

}  // namespace nanovllm::reference
