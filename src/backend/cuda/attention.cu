// Paged attention for any head size, window and soft cap: the general kernel that the fast ones are
// measured against. A block a (token, query head); its warps share the keys and merge their online
// softmaxes (https://arxiv.org/abs/1805.02867). Reads K and V once for each query head: G times the
// bytes a grouped kernel needs.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/kv_layout.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxPerLane = 8;  // head_dim up to 256

struct Problem {
  KvView kv;
  AttentionParams params;
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  const int32_t* block_table;
  int block_table_stride;
  int num_seqs;
};

// The sequence whose rows of query_start_loc hold `token`.
__device__ int sequence_of(const Problem& p, int token) {
  int low = 0, high = p.num_seqs - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (p.query_start_loc[middle] <= token) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

template <typename T>
__global__ void __launch_bounds__(kWarps * 32)
    paged_attention_kernel(T* out, const T* qkv, const T* cache, Problem p) {
  const int token = blockIdx.x, head = blockIdx.y;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int dim = p.kv.head_dim, heads = p.params.num_heads;
  const int kv_head = head / (heads / p.kv.num_kv_heads);
  const int s = sequence_of(p, token);
  const int position = p.seq_lens[s] - (p.query_start_loc[s + 1] - token);
  const int first = p.params.window > 0 ? max(0, position - p.params.window + 1) : 0;
  const T* q = qkv + (static_cast<int64_t>(token) * (heads + 2 * p.kv.num_kv_heads) + head) * dim;

  float query[kMaxPerLane], sum[kMaxPerLane] = {};
#pragma unroll
  for (int j = 0; j < kMaxPerLane; ++j)
    query[j] = lane + 32 * j < dim ? load(q + lane + 32 * j) * p.params.scale : 0.f;
  float largest = -1e30f, total = 0;
  for (int key = first + warp; key <= position; key += kWarps) {
    const int64_t block =
        p.block_table[static_cast<int64_t>(s) * p.block_table_stride + key / p.kv.block_size];
    const int64_t slot = block * p.kv.block_size + key % p.kv.block_size;
    const T* k = cache + p.kv.offset(slot, kv_head, 0);
    const T* v = cache + p.kv.offset(slot, kv_head, 1);
    float dot = 0;
#pragma unroll
    for (int j = 0; j < kMaxPerLane; ++j) {
      if (lane + 32 * j < dim) dot += query[j] * load(k + lane + 32 * j);
    }
    float score = warp_sum(dot);
    if (p.params.soft_cap > 0) score = p.params.soft_cap * tanhf(score / p.params.soft_cap);
    const float now = fmaxf(largest, score);
    const float keep = __expf(largest - now), weight = __expf(score - now);
    total = total * keep + weight;
    largest = now;
#pragma unroll
    for (int j = 0; j < kMaxPerLane; ++j) {
      if (lane + 32 * j < dim) sum[j] = sum[j] * keep + weight * load(v + lane + 32 * j);
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
  float all_total = 0;
  for (int w = 0; w < kWarps; ++w) all_total += part_total[w] * __expf(part_max[w] - all_max);
  for (int i = threadIdx.x; i < dim; i += blockDim.x) {
    float value = 0;
    for (int w = 0; w < kWarps; ++w) value += part_sum[w][i] * __expf(part_max[w] - all_max);
    store(out + (static_cast<int64_t>(token) * heads + head) * dim + i, value / all_total);
  }
}

}  // namespace

void launch_paged_attention(cudaStream_t stream, void* out, const void* qkv, DType dtype,
                            const KvCache& cache, const AttentionParams& params,
                            const ForwardBatch& batch) {
  if (batch.num_tokens == 0) return;
  NANOVLLM_CHECK(cache.spec.head_dim <= kMaxPerLane * 32);
  const Problem problem = {view_of(cache.spec),   params,
                           batch.query_start_loc, batch.seq_lens,
                           batch.block_table,     batch.block_table_stride,
                           batch.num_seqs};
  with_act_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    paged_attention_kernel<<<dim3(batch.num_tokens, params.num_heads), kWarps * 32, 0, stream>>>(
        static_cast<T*>(out), static_cast<const T*>(qkv), static_cast<const T*>(cache.data),
        problem);
  });
  NANOVLLM_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nanovllm::cuda
