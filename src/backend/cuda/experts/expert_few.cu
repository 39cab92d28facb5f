// Mixtures of experts for so few rows that hardly two of them choose the same expert: bound by the
// bytes of the chosen experts' weights, if nothing but two kernels stands between the router's
// logits and the result. Every block of the first finds out for itself what the rows choose; no
// pair is sorted, and a warp multiplies a pair's row by rows of its expert's weights. A block of
// the second kernel has some columns of a row for all of the row's experts, and adds up their
// outputs, which are not rounded before. A row's bits do not depend on the others.
#include <algorithm>

#include "backend/cuda/device/activation.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/warp_rows.cuh"
#include "backend/cuda/experts/routing.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * 32;
// Blocks of a multiprocessor: three take the rows of Qwen3-30B-A3B's gate and up in two rounds.
constexpr int kUpBlocks = 3, kDownBlocks = 4;
constexpr int kColumns = 4;  // of a block of the second kernel

struct Few {
  RouterParams router;
  ExpertStep step;
  ExpertProduct product;
  const void* shared;  // [T, H], or none
};

// A warp computes an element of gate and up of a pair.
template <typename T>
__device__ void gate_and_up(const Few& few, const int32_t* ids) {
  const ExpertProduct& p = few.product;
  const int width = p.out_features / 2;
  const int items = few.step.num_rows * few.router.num_active * width;
  for (int item = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32); item < items;
       item += static_cast<int>(gridDim.x) * kWarps) {
    const int pair = item / width, expert = ids[pair] - few.router.first;
    if (expert < 0 || expert >= few.router.count) continue;
    const int64_t gate = int64_t{expert} * p.out_features + item % width;
    const T* const x[] = {static_cast<const T*>(p.x) +
                          int64_t{pair / few.router.num_active} * p.in_features};
    const T* const w = static_cast<const T*>(p.weight) + gate * p.in_features;
    float sum[1][2] = {};
    multiply_rows<kVectorOf<T>>(sum, x, {w, w + int64_t{width} * p.in_features}, p.in_features);
    float y[2] = {warp_sum(sum[0][0]), warp_sum(sum[0][1])};
    if (threadIdx.x % 32 != 0) continue;
    if (p.bias != nullptr) {
      y[0] += p.bias[gate];
      y[1] += p.bias[gate + width];
    }
    store(static_cast<T*>(p.out) + item, gate_and_mul(p.activation, y[0], y[1]));
  }
}

// The experts' outputs of one row, of kColumns columns from `first` on, each expert's by a warp.
template <typename T>
__device__ void down(const Few& few, int row, int first, float (*outputs)[kColumns]) {
  const ExpertProduct& p = few.product;
  for (int slot = static_cast<int>(threadIdx.x) / 32; slot < few.router.num_active;
       slot += kWarps) {
    const int pair = row * few.router.num_active + slot;
    const int expert = few.step.ids[pair] - few.router.first;
    float sum[1][kColumns] = {}, bias[kColumns] = {};
    if (expert >= 0 && expert < few.router.count) {
      const T* const x[] = {static_cast<const T*>(p.x) + int64_t{pair} * p.in_features};
      const T* w[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int64_t feature =
            int64_t{expert} * p.out_features + min(first + c, p.out_features - 1);
        w[c] = static_cast<const T*>(p.weight) + feature * p.in_features;
        if (p.bias != nullptr) bias[c] = p.bias[feature];
      }
      multiply_rows<kVectorOf<T>>(sum, x, w, p.in_features);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float y = warp_sum(sum[0][c]) + bias[c];
      if (threadIdx.x % 32 == 0) outputs[slot][c] = y;
    }
  }
}

template <typename T>
__device__ void down_and_sum(const Few& few) {
  __shared__ float outputs[kMaxActiveExperts][kColumns];
  const int hidden = few.product.out_features, groups = (hidden + kColumns - 1) / kColumns;
  const int active = few.router.num_active;
  for (int item = static_cast<int>(blockIdx.x); item < few.step.num_rows * groups;
       item += static_cast<int>(gridDim.x)) {
    const int row = item / groups, first = item % groups * kColumns;
    down<T>(few, row, first, outputs);
    __syncthreads();
    const int column = first + static_cast<int>(threadIdx.x);
    if (threadIdx.x < kColumns && column < hidden) {
      float sum = 0;
      for (int slot = 0; slot < active; ++slot) {
        sum = fmaf(few.step.scores[row * active + slot], outputs[slot][threadIdx.x], sum);
      }
      const int64_t at = int64_t{row} * hidden + column;
      if (few.shared != nullptr) {
        sum += shared_gate(few.router, few.step.logits + int64_t{row} * few.router.num_logits) *
               load(static_cast<const T*>(few.shared) + at);
      }
      store(static_cast<T*>(few.product.out) + at, sum);
    }
    __syncthreads();  // the outputs are read until then
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, kUpBlocks)
    gate_and_up_kernel(const __grid_constant__ Few few) {
  extern __shared__ float memory[];
  __shared__ int32_t ids[kMaxFewPairs];
  __shared__ float scores[kMaxFewPairs];
  wait_for_predecessor();
  release_successor();
  route_rows(few.router, few.step.logits, few.step.num_rows, memory, ids, scores);
  __syncthreads();
  const int pair = static_cast<int>(threadIdx.x);
  if (blockIdx.x == 0 && pair < few.step.num_rows * few.router.num_active) {
    few.step.ids[pair] = ids[pair];
    few.step.scores[pair] = scores[pair];
  }
  gate_and_up<T>(few, ids);
}

template <typename T>
__global__ void __launch_bounds__(kThreads, kDownBlocks)
    down_kernel(const __grid_constant__ Few few) {
  release_successor();
  wait_for_predecessor();
  down_and_sum<T>(few);
}

}  // namespace

void launch_few(cudaStream_t stream, const RouterParams& router, const ExpertStep& step,
                const ExpertProduct& gate_up, const ExpertProduct& down, const void* shared,
                DType dtype, int num_multiprocessors) {
  const size_t bytes = size_t{3} * router.num_experts * step.num_rows * sizeof(float);
  const int pairs = step.num_rows * router.num_active;
  with_act_type(dtype, [&]<typename T>(T) {
    launch(stream, gate_and_up_kernel<T>,
           std::min(div_up(int64_t{pairs} * gate_up.out_features / 2, kWarps),
                    kUpBlocks * num_multiprocessors),
           kThreads, bytes, Few{router, step, gate_up, nullptr});
    launch(stream, down_kernel<T>,
           std::min(step.num_rows * div_up(down.out_features, kColumns),
                    kDownBlocks * num_multiprocessors),
           kThreads, 0, Few{router, step, down, shared});
  });
}

}  // namespace nanovllm::cuda
