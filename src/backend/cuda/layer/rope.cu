// Per-head RMSNorm of q and k, rotary embedding (https://arxiv.org/abs/2104.09864, NeoX pairing)
// and the store of k and v into the paged cache, in one pass: reads and writes each of qkv's
// elements once, and a token's row of cos and sin. Neighbouring lanes hold a head in vectors of 8
// elements; a rotation's partner lies in another lane's registers.
#include "backend/cuda/device/kv_layout.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/rope.cuh"
#include "backend/cuda/layer/row_kernels.h"
#include "base/assert.h"

namespace nanovllm::cuda {
namespace {

constexpr int kThreads = 128;

// A head has `lanes` lanes, as norm_and_turn() wants them.
template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads)
    qk_norm_rope_store_kernel(T* qkv, int64_t row_width, T* cache, KvView kv, int num_heads,
                              Rope rope, const int32_t* positions, const int32_t* slots,
                              int num_tokens, int lanes) {
  wait_for_predecessor();
  // After the wait: attention reads the batch's lengths before its own, see attention_decode.cu.
  release_successor();
  const int heads = num_heads + 2 * kv.num_kv_heads;
  const int64_t job = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes, i = lane * kVector;
  const bool active = job < int64_t{num_tokens} * heads && i < kv.head_dim;
  const int64_t token = active ? job / heads : 0;
  const int head = active ? static_cast<int>(job % heads) : 0;
  const bool is_query = head < num_heads, is_value = head >= num_heads + kv.num_kv_heads;
  const int64_t position = positions[token], slot = slots[token];
  T* const from = qkv + token * row_width + head * kv.head_dim + i;

  float x[kVector] = {};
  if (active) load_vector(x, from);
  const bool turns = active && !is_value;
  const float* const norm = is_query ? rope.q_norm : rope.k_norm;
  norm_and_turn(x, i, lanes, kv.head_dim, turns ? norm : nullptr, rope.eps,
                turns ? rope.cos_sin + position * rope.rotary_dim : nullptr, rope.rotary_dim);
  if (!active) return;
  if (is_query) {
    store_vector(from, x);
  } else if (slot >= 0) {
    const int kv_head = head - num_heads - (is_value ? kv.num_kv_heads : 0);
    const int place = i ^ kv.swizzle(static_cast<int>(slot % kv.block_size));
    store_vector(cache + kv.offset(slot, kv_head, is_value ? 1 : 0) + place, x);
  }
}

// Any split of the head: one warp a head, which turns it in shared memory.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    qk_norm_rope_store_general_kernel(T* qkv, int64_t row_width, T* cache, KvView kv, int num_heads,
                                      Rope rope, const int32_t* positions, const int32_t* slots,
                                      int num_tokens) {
  wait_for_predecessor();
  release_successor();
  __shared__ float rows[kThreads / 32][kMaxHeadDim];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int heads = num_heads + 2 * kv.num_kv_heads;
  const int64_t job = int64_t{blockIdx.x} * (kThreads / 32) + warp;
  if (job >= int64_t{num_tokens} * heads) return;
  const int64_t token = job / heads;
  const int head = static_cast<int>(job % heads);
  const bool is_query = head < num_heads, is_value = head >= num_heads + kv.num_kv_heads;
  T* x = qkv + token * row_width + head * kv.head_dim;
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
  T* target = x;
  int swizzle = 0;
  if (!is_query) {
    if (slot < 0) return;
    const int kv_head = head - num_heads - (is_value ? kv.num_kv_heads : 0);
    target = cache + kv.offset(slot, kv_head, is_value ? 1 : 0);
    swizzle = kv.swizzle(static_cast<int>(slot % kv.block_size));
  }
  for (int i = lane; i < kv.head_dim; i += 32) {
    float y = row[i];
    if (!is_value && i < half) y = row[i] * cosine[i] - row[i + half] * cosine[half + i];
    if (!is_value && i >= half && i < rope.rotary_dim) {
      y = row[i] * cosine[i - half] + row[i - half] * cosine[i];
    }
    store(target + (i ^ swizzle), y);
  }
}

}  // namespace

void launch_qk_norm_rope_store(cudaStream_t stream, Tensor qkv, int num_heads,
                               const RopeParams& params, const KvCache& cache,
                               const ForwardBatch& batch) {
  if (batch.num_tokens == 0) return;
  const int dim = cache.spec.head_dim;
  NANOVLLM_CHECK(dim <= kMaxHeadDim && dim % kHeadVector == 0);
  const int64_t jobs =
      static_cast<int64_t>(batch.num_tokens) * (num_heads + 2 * cache.spec.num_kv_heads);
  const Rope rope = rope_of(params);
  const int64_t width = qkv.row_size();
  with_act_type(qkv.dtype, [&]<typename T>(T) {
    T* const x = static_cast<T*>(qkv.data);
    T* const kv = static_cast<T*>(cache.data);
    if (params.rotary_dim % 16 == 0) {
      int lanes = 1;
      while (lanes * 8 < dim) lanes *= 2;
      launch(stream, qk_norm_rope_store_kernel<T, 8>, div_up(jobs * lanes, kThreads), kThreads, 0,
             x, width, kv, view_of(cache.spec), num_heads, rope, batch.positions,
             batch.slot_mapping, batch.num_tokens, lanes);
    } else {
      launch(stream, qk_norm_rope_store_general_kernel<T>, div_up(jobs, kThreads / 32), kThreads, 0,
             x, width, kv, view_of(cache.spec), num_heads, rope, batch.positions,
             batch.slot_mapping, batch.num_tokens);
    }
  });
}

}  // namespace nanovllm::cuda
