// Per-head RMSNorm and rotary embedding of a head that lies in neighbouring lanes' registers.
#pragma once

#include "backend/cuda/device/vector.cuh"
#include "ops/backend.h"

namespace nanovllm::cuda {

// RopeParams in raw pointers.
struct Rope {
  const float* q_norm;
  const float* k_norm;
  float eps;
  const float* cos_sin;
  int rotary_dim;
};
inline Rope rope_of(const RopeParams& params) {
  return {params.q_norm, params.k_norm, params.norm_eps, params.cos_sin.f32(), params.rotary_dim};
}

// A head has `lanes` lanes (a power of two) of kVector elements each, of which x are this one's,
// from i on; a rotation's partner lies in another lane's registers, as of the halves of rotary_dim
// each begins at a lane of its own. A head with neither `norm` [head_dim] nor cos_sin [rotary_dim]
// stays as it is. All lanes of the warp call together.
template <int kVector>
__device__ inline void norm_and_turn(float (&x)[kVector], int i, int lanes, int head_dim,
                                     const float* norm, float eps, const float* cos_sin,
                                     int rotary_dim) {
  float sum = 0;
#pragma unroll
  for (int e = 0; e < kVector; ++e) sum += x[e] * x[e];
  for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (norm != nullptr) {
    const float scale = rsqrtf(sum / static_cast<float>(head_dim) + eps);
    float weight[kVector];
    load_vector(weight, norm + i);
#pragma unroll
    for (int e = 0; e < kVector; ++e) x[e] *= scale * weight[e];
  }
  const int half = rotary_dim / 2;
  const bool first = i < half;
  const int partner = static_cast<int>(threadIdx.x % 32) + (first ? half : -half) / kVector;
  float y[kVector];
#pragma unroll
  for (int e = 0; e < kVector; ++e) y[e] = __shfl_sync(0xffffffffu, x[e], partner);
  if (cos_sin == nullptr || i >= rotary_dim) return;
  float cosine[kVector], sine[kVector];
  load_vector(cosine, cos_sin + (first ? i : i - half));
  load_vector(sine, cos_sin + (first ? i : i - half) + half);
#pragma unroll
  for (int e = 0; e < kVector; ++e) {
    x[e] = first ? x[e] * cosine[e] - y[e] * sine[e] : x[e] * cosine[e] + y[e] * sine[e];
  }
}

}  // namespace nanovllm::cuda
