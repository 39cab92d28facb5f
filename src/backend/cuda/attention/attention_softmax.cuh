// Online softmax (https://arxiv.org/abs/1805.02867) over tiles of scores as the tensor cores leave
// them: a lane holds, of two rows h of 16, scores of keys 8 n + lane % 4 * 2 + e in s[n][2 * h +
// e].
#pragma once

#include "backend/cuda/attention/attention.cuh"

namespace nanovllm::cuda {

// What a lane knows of its two rows.
struct SoftmaxRows {
  float largest[2] = {-INFINITY, -INFINITY};
  float total[2] = {};  // over this lane's keys
};

__device__ inline float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Softmax takes the scores times this, in units of log2.
__device__ inline float score_factor(const AttentionProblem& p) {
  return (p.params.soft_cap > 0 ? p.params.soft_cap : p.params.scale) * kLog2E;
}

template <int kKeyTiles>
__device__ void cap_scores(float (&s)[kKeyTiles][4], const AttentionProblem& p) {
  const float inner = p.params.scale / p.params.soft_cap;
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (float& x : s[n]) x = tanhf(x * inner);
  }
}

// -infinity for the keys that rows at the positions `own` do not see; `tile`: the first key's.
template <int kKeyTiles>
__device__ void hide_keys(float (&s)[kKeyTiles][4], const AttentionProblem& p, const int (&own)[2],
                          int tile, int lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int first = p.first_visible(own[h]);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = tile + 8 * n + lane % 4 * 2 + e;
        if (key > own[h] || key < first) s[n][2 * h + e] = -INFINITY;
      }
    }
  }
}

// s becomes the tile's weights, and what the rows have summed up before is worth `keep` of itself.
template <int kKeyTiles>
__device__ void weigh_keys(float (&s)[kKeyTiles][4], SoftmaxRows& rows, float factor,
                           float (&keep)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float now = rows.largest[h];
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) now = fmaxf(now, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
    now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
    now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
    const float base = now == -INFINITY ? 0.f : now * factor;
    // Exactly 1 where nothing larger came: the product may not be rounded as that of `base` was.
    keep[h] = now == rows.largest[h] ? 1.f : exp2_approximate(fmaf(rows.largest[h], factor, -base));
    rows.largest[h] = now;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int e = 2 * h; e < 2 * h + 2; ++e) {
        s[n][e] = exp2_approximate(fmaf(s[n][e], factor, -base));
        sum += s[n][e];
      }
    }
    rows.total[h] = rows.total[h] * keep[h] + sum;
  }
}

// One over row h's total, its head's sink included; 0 for a row of padding, which sees nothing.
__device__ inline float softmax_factor(const SoftmaxRows& rows, int h, const AttentionProblem& p,
                                       int head) {
  float total = rows.total[h];
  total += __shfl_xor_sync(0xffffffffu, total, 1);
  total += __shfl_xor_sync(0xffffffffu, total, 2);
  total += p.sink_weight(head, rows.largest[h] * score_factor(p));
  return total > 0 ? 1 / total : 0.f;
}

}  // namespace nanovllm::cuda
