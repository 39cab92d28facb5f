// How a row's logits choose its experts.
#pragma once

#include <cmath>

#include "backend/cuda/device/device.cuh"
#include "backend/cuda/experts/experts.h"

namespace nanovllm::cuda {

// How many of the values come before value i: larger ones, and equals in front of it.
__device__ inline int count_before(const float* values, int n, int i) {
  const float mine = values[i];
  int before = 0;
#pragma unroll 8
  for (int j = 0; j < n; ++j) before += values[j] > mine || (values[j] == mine && j < i);
  return before;
}

// Closes the experts of all groups but the best, by a warp.
__device__ inline void close_groups(const RouterParams& p, float* choice, float* groups) {
  const int size = p.num_experts / p.num_groups;
  for (int g = threadIdx.x % 32; g < p.num_groups; g += 32) {
    float first = -INFINITY, second = -INFINITY;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      second = fmaxf(second, fminf(first, choice[e]));
      first = fmaxf(first, choice[e]);
    }
    groups[g] = size > 1 ? first + second : first;
  }
  __syncwarp();
  for (int e = threadIdx.x % 32; e < p.num_experts; e += 32) {
    if (count_before(groups, p.num_groups, e / size) >= p.num_active_groups) choice[e] = -INFINITY;
  }
}

// The scores of a row's experts, what they are chosen by, and room for their groups, by a warp.
// Code that runs once a launch is to be short, as it has to be fetched.
__device__ inline void score_row(const RouterParams& p, const float* logits, float* score) {
  const int lane = threadIdx.x % 32;
  float *choice = score + p.num_experts, *groups = choice + p.num_experts;
  const bool is_softmax = p.score == Routing::Score::kSoftmax;
  float largest = -INFINITY, sum = 0;
  for (int e = lane; e < p.num_experts; e += 32) largest = fmaxf(largest, score[e] = logits[e]);
  largest = warp_max(largest);
#pragma unroll 1
  for (int e = lane; e < p.num_experts; e += 32) {
    score[e] = is_softmax ? expf(score[e] - largest) : 1.f / (1.f + expf(-score[e]));
    sum += score[e];
  }
  sum = is_softmax ? warp_sum(sum) : 1.f;
#pragma unroll 1
  for (int e = lane; e < p.num_experts; e += 32) {
    score[e] /= sum;
    const float by = score[e] + (p.correction == nullptr ? 0.f : p.correction[e]);
    choice[e] = isnan(by) ? -INFINITY : by;
  }
  __syncwarp();
  if (p.num_active_groups < p.num_groups) close_groups(p, choice, groups);
}

// What `count` rows of logits choose and its scores, [count, num_active], by a block with 3
// num_experts floats a row. An expert's place is the number of those before it.
__device__ inline void route_rows(const RouterParams& p, const float* logits, int count,
                                  float* memory, int32_t* ids, float* scores) {
  const int lane = threadIdx.x % 32, warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32, n = p.num_experts;
  for (int r = warp; r < count; r += warps) {
    score_row(p, logits + static_cast<int64_t>(r) * p.num_logits, memory + r * 3 * n);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count * n; i += static_cast<int>(blockDim.x)) {
    const float* choice = memory + i / n * 3 * n + n;
    const int expert = i % n;
    const int before = count_before(choice, n, expert);
    if (before < p.num_active) ids[i / n * p.num_active + before] = expert;
  }
  __syncthreads();
  for (int r = warp; r < count; r += warps) {
    const float* score = memory + r * 3 * n;
    const int32_t* chosen = ids + r * p.num_active;
    float sum = 0;
    for (int j = lane; j < p.num_active; j += 32) sum += score[chosen[j]];
    sum = p.renormalise ? warp_sum(sum) : 1.f;
    for (int j = lane; j < p.num_active; j += 32) {
      scores[r * p.num_active + j] = score[chosen[j]] / sum * p.scale;
    }
  }
}

// What the shared expert's output counts in a row of these logits.
__device__ inline float shared_gate(const RouterParams& p, const float* logits) {
  return p.num_logits > p.num_experts ? 1.f / (1.f + expf(-logits[p.num_experts])) : 1.f;
}

}  // namespace nanovllm::cuda
