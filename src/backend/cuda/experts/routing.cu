// Which rows go to which experts, and back: choice, sort by expert, and the sum over a
// row's experts. Bound by latency where rows are few; by the gathered rows, P H elements written
// and read, where they are many.
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/vector.cuh"
#include "backend/cuda/experts/routing.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kWarps = 4;  // of blocks whose warps are alone

__global__ void __launch_bounds__(kWarps * 32)
    route_kernel(const __grid_constant__ RouterParams p, const __grid_constant__ ExpertStep step) {
  extern __shared__ float memory[];
  release_successor();
  wait_for_predecessor();
  const int first = static_cast<int>(blockIdx.x) * kWarps;
  const int64_t pair = int64_t{first} * p.num_active;
  route_rows(p, step.logits + int64_t{first} * p.num_logits, min(kWarps, step.num_rows - first),
             memory, step.ids + pair, step.scores + pair);
}

// Block e finds the pairs of expert e and gathers their rows. Their order is anyone's: no result
// depends on it.
__global__ void __launch_bounds__(1024)
    sort_kernel(const __grid_constant__ RouterParams p, const __grid_constant__ ExpertStep step,
                int tile_rows, const uint4* x, int row_vectors) {
  __shared__ int counts[kMaxExperts];
  __shared__ int pairs_before, tiles_before, found;
  const int expert = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  for (int e = thread; e < p.count; e += threads) counts[e] = 0;
  if (thread == 0) pairs_before = tiles_before = found = 0;
  __syncthreads();
  release_successor();
  wait_for_predecessor();
  const int pairs = step.num_rows * p.num_active;
#pragma unroll 4
  for (int i = thread; i < pairs; i += threads) {
    const int id = step.ids[i] - p.first;
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
  for (int t = thread; t < tiles; t += threads) {
    step.tiles[tiles_before + t] = {expert, first + t * tile_rows,
                                    min(tile_rows, count - t * tile_rows)};
  }
#pragma unroll 4
  for (int i = thread; i < pairs; i += threads) {
    if (step.ids[i] - p.first != expert) continue;
    const int place = atomicAdd(&found, 1);
    step.places[i] = first + place;
    step.tokens[first + place] = i / p.num_active;
  }
  if (row_vectors == 0) return;
  __syncthreads();
  for (int r = thread / 32; r < count; r += threads / 32) {
    const uint4* source = x + int64_t{step.tokens[first + r]} * row_vectors;
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
    for (int j = 0; j < kAtOnce; ++j) {
      if (place[j] >= 0) load_vector(y[j], outputs + int64_t{place[j]} * hidden + i);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
      for (int e = 0; e < n; ++e) sum[e] = fmaf(score[j], y[j][e], sum[e]);
    }
  }
  if (shared != nullptr) {
    const float gate = shared_gate(p, step.logits + row * p.num_logits);
    float y[n];
    load_vector(y, shared + row * hidden + i);
#pragma unroll
    for (int e = 0; e < n; ++e) sum[e] = fmaf(gate, y[e], sum[e]);
  }
  store_vector(out + row * hidden + i, sum);
}

}  // namespace

void launch_route_and_sort(cudaStream_t stream, const RouterParams& params, const ExpertStep& step,
                           int tile_rows, const void* x, int row_bytes) {
  const int pairs = step.num_rows * params.num_active;
  const size_t row_memory = size_t{3} * params.num_experts * sizeof(float);
  launch(stream, route_kernel, div_up(step.num_rows, kWarps), kWarps * 32, kWarps * row_memory,
         params, step);
  launch(stream, sort_kernel, params.count, pairs > 4096 ? 1024 : 256, 0, params, step, tile_rows,
         static_cast<const uint4*>(x), row_bytes / 16);
}

void launch_combine(cudaStream_t stream, void* out, DType dtype, const RouterParams& params,
                    const ExpertStep& step, const void* shared, int hidden) {
  with_act_type(dtype, [&]<typename T>(T) {
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
