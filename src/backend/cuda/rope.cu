// Per-head RMSNorm of q and k, rotary embedding (https://arxiv.org/abs/2104.09864, NeoX pairing)
// and the store of k and v into the paged cache, in one pass: reads and writes each of qkv's
// elements once. One warp a head and token; a lane holds elements lane, lane + 32, ... of the head,
// and fetches the partner of a rotation from shared memory.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/kv_layout.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMaxHeadDim = 256;

struct Rope {
  const float* q_norm;
  const float* k_norm;
  float eps;
  const float* cos_sin;
  int rotary_dim;
};

template <typename T>
__global__ void __launch_bounds__(kWarps * 32)
    qk_norm_rope_store_kernel(T* qkv, T* cache, KvView kv, int num_heads, Rope rope,
                              const int32_t* positions, const int32_t* slots, int num_tokens) {
  __shared__ float rows[kWarps][kMaxHeadDim];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int heads = num_heads + 2 * kv.num_kv_heads;
  const int64_t job = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  if (job >= static_cast<int64_t>(num_tokens) * heads) return;
  const int64_t token = job / heads;
  const int head = static_cast<int>(job % heads);
  const bool is_query = head < num_heads, is_value = head >= num_heads + kv.num_kv_heads;
  T* x = qkv + job * kv.head_dim;
  float* row = rows[warp];

  float sum = 0;
  for (int i = lane; i < kv.head_dim; i += 32) {
    row[i] = load(x + i);
    sum += row[i] * row[i];
  }
  __syncwarp();
  const float* norm = is_value ? nullptr : is_query ? rope.q_norm : rope.k_norm;
  if (norm != nullptr) {
    const float scale = rsqrtf(warp_sum(sum) / static_cast<float>(kv.head_dim) + rope.eps);
    for (int i = lane; i < kv.head_dim; i += 32) row[i] *= scale * norm[i];
    __syncwarp();
  }
  const int half = rope.rotary_dim / 2;
  const float* cosine = rope.cos_sin + static_cast<int64_t>(positions[token]) * rope.rotary_dim;
  const int64_t slot = slots[token];
  T* target = is_query   ? x
              : slot < 0 ? nullptr
                         : cache + kv.offset(slot,
                                             is_value ? head - num_heads - kv.num_kv_heads
                                                      : head - num_heads,
                                             is_value ? 1 : 0);
  if (target == nullptr) return;
  for (int i = lane; i < kv.head_dim; i += 32) {
    float y = row[i];
    if (!is_value && i < half) y = row[i] * cosine[i] - row[i + half] * cosine[half + i];
    if (!is_value && i >= half && i < rope.rotary_dim)
      y = row[i] * cosine[i - half] + row[i - half] * cosine[i];
    store(target + i, y);
  }
}

}  // namespace

void launch_qk_norm_rope_store(cudaStream_t stream, void* qkv, DType dtype, int num_heads,
                               const RopeParams& params, const KvCache& cache,
                               const ForwardBatch& batch) {
  if (batch.num_tokens == 0) return;
  NANOVLLM_CHECK(cache.spec.head_dim <= kMaxHeadDim);
  const int64_t jobs =
      static_cast<int64_t>(batch.num_tokens) * (num_heads + 2 * cache.spec.num_kv_heads);
  const Rope rope = {params.q_norm, params.k_norm, params.norm_eps, params.cos_sin.f32(),
                     params.rotary_dim};
  with_act_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    qk_norm_rope_store_kernel<<<div_up(jobs, kWarps), kWarps * 32, 0, stream>>>(
        static_cast<T*>(qkv), static_cast<T*>(cache.data), view_of(cache.spec), num_heads, rope,
        batch.positions, batch.slot_mapping, batch.num_tokens);
  });
  NANOVLLM_CUDA_CHECK(cudaGetLastError());
}

}  // namespace nanovllm::cuda
