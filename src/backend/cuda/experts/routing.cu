// Which rows go to which experts, and back: logits, choice, sort by expert, and the sum over a
// row's experts. Bound by latency where rows are few; by the gathered rows, P H elements written
// and read, where they are many.
#include <cmath>

#include "backend/cuda/experts/experts.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/vector.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kWarps = 4;       // of blocks whose warps are alone
constexpr int kRoutedRows = 8;  // at most, that need no kernel to choose experts

__device__ inline void prefetch_line(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// A warp computes kRows x kFeatures logits; the lanes share K.
template <typename T, int kRows, int kFeatures, int kVector>
__global__ void __launch_bounds__(kWarps * 32)
    router_kernel(float* logits, const T* x, const T* weight, const float* bias, int rows, int n,
                  int k) {
  release_successor();
  const int lane = threadIdx.x % 32;
  const int row = static_cast<int>(blockIdx.y) * kRows;
  const int feature = (static_cast<int>(blockIdx.x) * kWarps + threadIdx.x / 32) * kFeatures;
  if constexpr (kRows == 1) {
    for (int i = lane * 64; i < k; i += 32 * 64)
      prefetch_line(weight + static_cast<int64_t>(min(feature, n - 1)) * k + i);
  }
  wait_for_predecessor();
  float sum[kRows][kFeatures] = {};
#pragma unroll(kRows == 1 ? 8 : 1)
  for (int i = lane * kVector; i < k; i += 32 * kVector) {
    float w[kFeatures][kVector];
#pragma unroll
    for (int f = 0; f < kFeatures; ++f)
      load_vector(w[f], weight + static_cast<int64_t>(min(feature + f, n - 1)) * k + i);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float v[kVector];
      load_vector(v, x + static_cast<int64_t>(min(row + r, rows - 1)) * k + i);
#pragma unroll
      for (int f = 0; f < kFeatures; ++f)
#pragma unroll
        for (int e = 0; e < kVector; ++e) sum[r][f] = fmaf(v[e], w[f][e], sum[r][f]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int f = 0; f < kFeatures; ++f) {
      const float y = warp_sum(sum[r][f]);
      if (lane != 0 || row + r >= rows || feature + f >= n) continue;
      logits[static_cast<int64_t>(row + r) * n + feature + f] =
          y + (bias == nullptr ? 0.f : bias[feature + f]);
    }
  }
}

// How many of the values come before value i: larger ones, and equals in front of it.
__device__ int count_before(const float* values, int n, int i) {
  const float mine = values[i];
  int before = 0;
#pragma unroll 8
  for (int j = 0; j < n; ++j) before += values[j] > mine || (values[j] == mine && j < i);
  return before;
}

// Closes the experts of all groups but the best, by a warp.
__device__ void close_groups(const RouterParams& p, float* choice, float* groups) {
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
  for (int e = threadIdx.x % 32; e < p.num_experts; e += 32)
    if (count_before(groups, p.num_groups, e / size) >= p.num_active_groups) choice[e] = -INFINITY;
}

// The scores of a row's experts, what they are chosen by, and room for their groups, by a warp.
__device__ void score_row(const RouterParams& p, const float* logits, float* score) {
  const int lane = threadIdx.x % 32;
  float *choice = score + p.num_experts, *groups = choice + p.num_experts;
  const bool is_softmax = p.score == Routing::Score::kSoftmax;
  float largest = -INFINITY, sum = 0;
  for (int e = lane; e < p.num_experts; e += 32) largest = fmaxf(largest, score[e] = logits[e]);
  largest = warp_max(largest);
  for (int e = lane; e < p.num_experts; e += 32) {
    score[e] = is_softmax ? expf(score[e] - largest) : 1.f / (1.f + expf(-score[e]));
    sum += score[e];
  }
  sum = is_softmax ? warp_sum(sum) : 1.f;
  for (int e = lane; e < p.num_experts; e += 32) {
    score[e] /= sum;
    const float by = score[e] + (p.correction == nullptr ? 0.f : p.correction[e]);
    choice[e] = isnan(by) ? -INFINITY : by;
  }
  __syncwarp();
  if (p.num_active_groups < p.num_groups) close_groups(p, choice, groups);
}

// What `count` rows from `first` on choose, by a block with 3 num_experts floats a row. An expert's
// place is the number of those before it.
__device__ void route_rows(const RouterParams& p, const ExpertStep& step, int first, int count,
                           float* memory, int32_t* ids, bool writes_scores) {
  const int lane = threadIdx.x % 32, warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32, n = p.num_experts;
  for (int r = warp; r < count; r += warps)
    score_row(p, step.logits + static_cast<int64_t>(first + r) * p.num_logits, memory + r * 3 * n);
  __syncthreads();
  for (int i = threadIdx.x; i < count * n; i += static_cast<int>(blockDim.x)) {
    const float* choice = memory + i / n * 3 * n + n;
    const int expert = i % n;
    const int before = count_before(choice, n, expert);
    if (before < p.num_active) ids[i / n * p.num_active + before] = expert;
  }
  __syncthreads();
  for (int r = warp; r < count && writes_scores; r += warps) {
    const float* score = memory + r * 3 * n;
    float sum = 0;
    for (int j = lane; j < p.num_active; j += 32) sum += score[ids[r * p.num_active + j]];
    sum = p.renormalise ? warp_sum(sum) : 1.f;
    for (int j = lane; j < p.num_active; j += 32)
      step.scores[static_cast<int64_t>(first + r) * p.num_active + j] =
          score[ids[r * p.num_active + j]] / sum * p.scale;
  }
}

__global__ void __launch_bounds__(kWarps * 32)
    route_kernel(const __grid_constant__ RouterParams p, const __grid_constant__ ExpertStep step) {
  extern __shared__ float memory[];
  release_successor();
  wait_for_predecessor();
  const int first = static_cast<int>(blockIdx.x) * kWarps;
  route_rows(p, step, first, min(kWarps, step.num_rows - first), memory,
             step.ids + static_cast<int64_t>(first) * p.num_active, true);
}

// Block e finds the pairs of expert e and gathers their rows. Their order is anyone's: no result
// depends on it. With few rows each block finds out for itself what they choose.
template <bool kRoutes>
__global__ void __launch_bounds__(1024)
    sort_kernel(const __grid_constant__ RouterParams p, const __grid_constant__ ExpertStep step,
                int tile_rows, const uint4* x, int row_vectors) {
  __shared__ int counts[kMaxExperts];
  __shared__ int pairs_before, tiles_before, found;
  __shared__ int32_t few_tokens[kRoutedRows];
  const int expert = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  for (int e = thread; e < p.count; e += threads) counts[e] = 0;
  if (thread == 0) pairs_before = tiles_before = found = 0;
  __syncthreads();
  release_successor();
  wait_for_predecessor();
  const int32_t* ids = step.ids;
  if constexpr (kRoutes) {
    extern __shared__ float memory[];
    __shared__ int32_t routed[kRoutedRows * kMaxActiveExperts];
    route_rows(p, step, 0, step.num_rows, memory, routed, expert == 0);
    ids = routed;
  }
  const int pairs = step.num_rows * p.num_active;
#pragma unroll 4
  for (int i = thread; i < pairs; i += threads) {
    const int id = ids[i] - p.first;
    if (id >= 0 && id < p.count) {
      atomicAdd(&counts[id], 1);
    } else if (expert == 0) {
      step.places[i] = -1;
    }
  }
  __syncthreads();
  for (int e = thread; e < expert; e += threads) {
    if (counts[e] == 0) continue;
    atomicAdd(&pairs_before, counts[e]);
    atomicAdd(&tiles_before, (counts[e] + tile_rows - 1) / tile_rows);
  }
  __syncthreads();
  const int first = pairs_before, count = counts[expert];
  const int tiles = (count + tile_rows - 1) / tile_rows;
  if (expert == p.count - 1 && thread == 0) *step.num_tiles = tiles_before + tiles;
  if (count == 0) return;
  for (int t = thread; t < tiles; t += threads)
    step.tiles[tiles_before + t] = {expert, first + t * tile_rows,
                                    min(tile_rows, count - t * tile_rows)};
#pragma unroll 4
  for (int i = thread; i < pairs; i += threads) {
    if (ids[i] - p.first != expert) continue;
    const int place = atomicAdd(&found, 1);
    step.places[i] = first + place;
    step.tokens[first + place] = i / p.num_active;
    if constexpr (kRoutes) few_tokens[place] = i / p.num_active;
  }
  if (row_vectors == 0) return;
  __syncthreads();
  for (int r = thread / 32; r < count; r += threads / 32) {
    const int token = kRoutes ? few_tokens[r] : step.tokens[first + r];
    const uint4* source = x + static_cast<int64_t>(token) * row_vectors;
    uint4* target = static_cast<uint4*>(step.gathered) + int64_t{first + r} * row_vectors;
#pragma unroll 8
    for (int i = thread % 32; i < row_vectors; i += 32) target[i] = source[i];
  }
}

constexpr int kAtOnce = 8;  // outputs of experts on their way to a thread

template <typename T, int n>
__global__ void combine_kernel(T* out, const __grid_constant__ RouterParams p,
                               const __grid_constant__ ExpertStep step, const T* shared,
                               int hidden) {
  release_successor();
  const int64_t row = blockIdx.x;
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * n;
  const auto* outputs = static_cast<const T*>(step.gathered);
  int place[kAtOnce];
  float score[kAtOnce], sum[n] = {};
  const auto fetch = [&](int first) {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const bool exists = first + j < p.num_active;
      place[j] = exists ? step.places[row * p.num_active + first + j] : -1;
      score[j] = exists ? step.scores[row * p.num_active + first + j] : 0.f;
    }
  };
  fetch(0);  // older than the kernel before this one, which has waited for it
  wait_for_predecessor();
  if (i >= hidden) return;
  for (int first = 0; first < p.num_active; first += kAtOnce) {
    if (first > 0) fetch(first);
    float y[kAtOnce][n] = {};
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      if (place[j] >= 0) load_vector(y[j], outputs + int64_t{place[j]} * hidden + i);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
      for (int e = 0; e < n; ++e) sum[e] = fmaf(score[j], y[j][e], sum[e]);
    }
  }
  if (shared != nullptr) {
    const bool has_gate = p.num_logits > p.num_experts;
    const float logit = has_gate ? step.logits[row * p.num_logits + p.num_experts] : 0.f;
    const float gate = has_gate ? 1.f / (1.f + expf(-logit)) : 1.f;
    float y[n];
    load_vector(y, shared + row * hidden + i);
#pragma unroll
    for (int e = 0; e < n; ++e) sum[e] = fmaf(gate, y[e], sum[e]);
  }
  store_vector(out + row * hidden + i, sum);
}

}  // namespace

void launch_router(cudaStream_t stream, float* logits, const void* x, DType dtype,
                   const void* weight, const float* bias, int num_rows, int n, int k) {
  with_act_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto run = [&](auto kernel, int rows, int features) {
      launch(stream, kernel, dim3(div_up(n, kWarps * features), div_up(num_rows, rows)),
             kWarps * 32, 0, logits, static_cast<const T*>(x), static_cast<const T*>(weight), bias,
             num_rows, n, k);
    };
    if (k % 8 != 0) {
      run(router_kernel<T, 1, 1, 1>, 1, 1);
    } else if (num_rows <= 8) {
      run(router_kernel<T, 1, 1, 8>, 1, 1);
    } else {
      run(router_kernel<T, 8, 4, 8>, 8, 4);
    }
  });
}

void launch_route_and_sort(cudaStream_t stream, const RouterParams& params, const ExpertStep& step,
                           int tile_rows, const void* x, int row_bytes) {
  const int pairs = step.num_rows * params.num_active;
  const size_t row_memory = size_t{3} * params.num_experts * sizeof(float);
  const auto* rows = static_cast<const uint4*>(x);
  if (step.num_rows <= kRoutedRows) {
    return launch(stream, sort_kernel<true>, params.count, kRoutedRows * 32,
                  step.num_rows * row_memory, params, step, tile_rows, rows, row_bytes / 16);
  }
  launch(stream, route_kernel, div_up(step.num_rows, kWarps), kWarps * 32, kWarps * row_memory,
         params, step);
  launch(stream, sort_kernel<false>, params.count, pairs > 4096 ? 1024 : 256, 0, params, step,
         tile_rows, rows, row_bytes / 16);
}

void launch_combine(cudaStream_t stream, void* out, DType dtype, const RouterParams& params,
                    const ExpertStep& step, const void* shared, int hidden) {
  with_act_type(dtype, [&](auto tag) {
    using T = decltype(tag);
    const auto run = [&](auto kernel, int n) {
      launch(stream, kernel, dim3(step.num_rows, div_up(hidden, n * 128)), 128, 0,
             static_cast<T*>(out), params, step, static_cast<const T*>(shared), hidden);
    };
    if (hidden % 8 == 0) {
      run(combine_kernel<T, 8>, 8);
    } else {
      run(combine_kernel<T, 1>, 1);
    }
  });
}

}  // namespace nanovllm::cuda
