// Paged attention for any head size, window and soft cap: the general kernel, for float32 and for
// what the tensor-core kernels do not know, and the launch of what is planned. A block a (token,
// query head); its warps share the keys and merge their online softmaxes
// (https://arxiv.org/abs/1805.02867). Reads K and V once for each query head: G times the bytes a
// grouped kernel needs.
#include "backend/cuda/attention/attention.cuh"
#include "backend/cuda/device/launch.cuh"
#include "base/assert.h"

namespace nanovllm::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxPerLane = kMaxHeadDim / 32;

// The tokens from `first_token` on.
template <typename T>
__global__ void __launch_bounds__(kWarps * 32)
    paged_attention_kernel(T* out, const T* qkv, const T* cache, AttentionProblem p,
                           int first_token) {
  wait_for_predecessor();
  release_successor();
  const int token = first_token + static_cast<int>(blockIdx.x), head = blockIdx.y;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int dim = p.kv.head_dim, heads = p.params.num_heads;
  const int kv_head = head / p.group;
  const int s = find_segment(p.query_start_loc, p.num_seqs, token);
  const int position = p.seq_lens[s] - (p.query_start_loc[s + 1] - token);
  const T* q = qkv + token * p.row_width + head * dim;

  float query[kMaxPerLane], sum[kMaxPerLane] = {};
#pragma unroll
  for (int j = 0; j < kMaxPerLane; ++j) {
    query[j] = lane + 32 * j < dim ? load(q + lane + 32 * j) * p.params.scale : 0.f;
  }
  float largest = -1e30f, total = 0;
  for (int key = p.first_visible(position) + warp; key <= position; key += kWarps) {
    const int64_t block =
        p.block_table[static_cast<int64_t>(s) * p.block_table_stride + key / p.kv.block_size];
    const int offset = key % p.kv.block_size, swizzle = p.kv.swizzle(offset);
    const T* k = cache + p.kv.offset_in_block(block, offset, kv_head, 0);
    const T* v = cache + p.kv.offset_in_block(block, offset, kv_head, 1);
    float dot = 0;
#pragma unroll
    for (int j = 0; j < kMaxPerLane; ++j) {
      if (lane + 32 * j < dim) dot += query[j] * load(k + ((lane + 32 * j) ^ swizzle));
    }
    float score = warp_sum(dot);
    if (p.params.soft_cap > 0) score = p.params.soft_cap * tanhf(score / p.params.soft_cap);
    const float now = fmaxf(largest, score);
    const float keep = __expf(largest - now), weight = __expf(score - now);
    total = total * keep + weight;
    largest = now;
#pragma unroll
    for (int j = 0; j < kMaxPerLane; ++j) {
      if (lane + 32 * j < dim) {
        sum[j] = sum[j] * keep + weight * load(v + ((lane + 32 * j) ^ swizzle));
      }
    }
  }

  __shared__ float part_max[kWarps], part_total[kWarps], part_sum[kWarps][kMaxPerLane * 32];
  if (lane == 0) {
    part_max[warp] = largest;
    part_total[warp] = total;
  }
#pragma unroll
  for (int j = 0; j < kMaxPerLane; ++j) part_sum[warp][lane + 32 * j] = sum[j];
  __syncthreads();
  float all_max = part_max[0];
  for (int w = 1; w < kWarps; ++w) all_max = fmaxf(all_max, part_max[w]);
  float all_total = p.sink_weight(head, all_max * kLog2E);
  for (int w = 0; w < kWarps; ++w) all_total += part_total[w] * __expf(part_max[w] - all_max);
  const float factor = all_total > 0 ? 1 / all_total : 0.f;  // a row of padding sees nothing
  for (int i = threadIdx.x; i < dim; i += blockDim.x) {
    float value[1] = {};
    for (int w = 0; w < kWarps; ++w) value[0] += part_sum[w][i] * __expf(part_max[w] - all_max);
    value[0] *= factor;
    p.apply_gate<T>(value, token, head, i);
    store(out + (static_cast<int64_t>(token) * heads + head) * dim + i, value[0]);
  }
}

template <typename T>
void launch_general(const AttentionCall<T>& call, int first_token, int num_tokens) {
  if (num_tokens == 0) return;
  NANOVLLM_CHECK(call.p.kv.head_dim <= kMaxHeadDim);
  launch(call.stream, paged_attention_kernel<T>, dim3(num_tokens, call.p.params.num_heads),
         kWarps * 32, 0, call.out, call.qkv, call.cache, call.p, first_token);
}

template <typename T>
AttentionCall<T> call_of(cudaStream_t stream, void* out, const void* qkv, const KvCache& cache,
                         const AttentionParams& params, const ForwardBatch& batch,
                         const AttentionWorkspace& workspace) {
  const int64_t width = params.num_heads * cache.spec.head_dim;
  const int64_t gates = width + int64_t{2} * cache.spec.num_kv_heads * cache.spec.head_dim;
  const AttentionProblem problem = {view_of(cache.spec),
                                    params,
                                    params.num_heads / cache.spec.num_kv_heads,
                                    batch.query_start_loc,
                                    batch.seq_lens,
                                    batch.block_table,
                                    batch.block_table_stride,
                                    0,
                                    batch.num_seqs,
                                    params.has_gate ? gates + width : gates,
                                    params.has_gate ? static_cast<const T*>(qkv) + gates : nullptr};
  return {stream,
          static_cast<T*>(out),
          static_cast<const T*>(qkv),
          static_cast<T*>(cache.data),
          problem,
          workspace};
}

}  // namespace

AttentionShape attention_shape(DType dtype, const KvCacheSpec& spec,
                               const AttentionParams& params) {
  return {dtype,         params.num_heads, spec.num_kv_heads,
          spec.head_dim, spec.block_size,  params.has_gate};
}

void launch_paged_attention(cudaStream_t stream, void* out, const void* qkv, DType dtype,
                            const KvCache& cache, const AttentionParams& params,
                            const ForwardBatch& batch, const AttentionWorkspace& workspace,
                            const AttentionPlan& plan) {
  if (dtype != DType::kBFloat16) {
    return launch_general(call_of<float>(stream, out, qkv, cache, params, batch, workspace), 0,
                          batch.num_tokens);
  }
  auto call = call_of<__nv_bfloat16>(stream, out, qkv, cache, params, batch, workspace);
  if (plan.pieces) {
    launch_piece_attention(call, *plan.pieces);
    if (plan.pieces->num_seqs == batch.num_seqs) return;
  }
  const int first_token = plan.decodes || plan.pieces ? batch.num_decodes : 0;
  if (plan.decodes) {
    call.p.num_seqs = batch.num_decodes;
    launch_decode_attention(call, *plan.decodes);
  }
  const int num_tokens = batch.num_tokens - first_token;
  if (num_tokens == 0) return;
  call.p.first_seq = first_token;
  call.p.num_seqs = batch.num_seqs;
  switch (plan.rest.path) {
    case AttentionPath::kWgmma:
      return launch_wgmma_prefill_attention(call, cache.num_blocks, plan.rest);
    case AttentionPath::kMma:
      return launch_prefill_attention(call, num_tokens, plan.rest);
    case AttentionPath::kGeneral:
      return launch_general(call, first_token, num_tokens);
    case AttentionPath::kStream:
    case AttentionPath::kStoreAndStream:
    case AttentionPath::kPieces:
      NANOVLLM_CHECK(!"a path of chunks");
  }
}

void launch_store_and_decode_attention(cudaStream_t stream, void* out, const void* qkv,
                                       const RopeParams& rope, const KvCache& cache,
                                       const AttentionParams& params, const ForwardBatch& batch,
                                       const AttentionWorkspace& workspace,
                                       const DecodeChoice& choice) {
  launch_store_and_decode_attention(
      call_of<__nv_bfloat16>(stream, out, qkv, cache, params, batch, workspace), rope_of(rope),
      batch.slot_mapping, choice);
}

}  // namespace nanovllm::cuda
