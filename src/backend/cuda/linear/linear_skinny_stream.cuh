// What products of few rows bring to shared memory: the weights, in the order of their use, and the
// rows, or their norms. See linear_skinny.cu.
#pragma once

#include "backend/cuda/device/mma.cuh"
#include "backend/cuda/device/vector.cuh"
#include "backend/cuda/linear/linear_skinny_plan.h"

namespace nanovllm::cuda::skinny {

template <int kTiles>
constexpr int kStages = stages_of(kTiles);
template <int kTiles>
constexpr int kStageSlots = kTiles * 2 * kThreads;  // of 16 bytes

// The stream of a thread's weights: for each group of features of the block and each unit of the
// warp, the thread's part of kTiles tiles.
template <int kTiles>
class WeightStream {
 public:
  __device__ WeightStream(const SkinnyProduct& p, const Plan& plan, uint4* slots, int rank)
      : p_(p), plan_(plan), slots_(slots), rank_(rank), group_(blockIdx.x / plan.cluster) {}

  // Starts the copies of the next unit into the slots of `stage`.
  __device__ void fetch(int stage) {
    if (group_ < plan_.groups) {
      const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
      const int k = (unit_ * plan_.cluster + rank_) * kBlockUnit + warp * kUnit + lane % 4 * 8;
      const auto* weight = static_cast<const __nv_bfloat16*>(p_.weight);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int feature = first_feature(tile) + lane / 4;
        const bool exists = feature < p_.out_features;
        const auto* row = weight + static_cast<int64_t>(exists ? feature : 0) * p_.in_features;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const bool inside = exists && k + half * 32 < p_.in_features;
          copy_async(shared_address(slot(stage, tile, half)), row + (inside ? k + half * 32 : 0),
                     inside);
        }
      }
      if (++unit_ == plan_.units) {
        unit_ = 0;
        group_ += gridDim.x / plan_.cluster;
      }
    }
    commit_copies();
  }

  __device__ uint4* slot(int stage, int tile, int half) const {
    return slots_ + ((stage * kTiles + tile) * 2 + half) * kThreads + threadIdx.x;
  }

 private:
  // Gate and up of the same outputs go into one group.
  __device__ int first_feature(int tile) const {
    if (p_.epilogue != Epilogue::kActAndMul) return (group_ * kTiles + tile) * 8;
    constexpr int kHalf = kTiles / 2;
    const int first = group_ * kHalf * 8;
    const int end = p_.out_features / 2;
    if (tile < kHalf) return first + tile * 8 < end ? first + tile * 8 : p_.out_features;
    return end + first + (tile - kHalf) * 8;
  }

  const SkinnyProduct& p_;
  const Plan& plan_;
  uint4* const slots_;
  const int rank_;
  int group_;
  int unit_ = 0;
};

// x's rows into shared memory, with the columns that this block multiplies from unit `first` on:
// blocks of kBlockUnit neighbours, every cluster-th of them.
__device__ inline void copy_rows(const SkinnyProduct& p, const Plan& plan, int rank, int first,
                                 __nv_bfloat16* rows) {
  const int columns = plan.x_units * kBlockUnit, stride = columns + kPad;
  const auto* x = static_cast<const __nv_bfloat16*>(p.x);
  for (int i = threadIdx.x; i < p.rows * columns / 8; i += kThreads) {
    const int row = i / (columns / 8), column = i % (columns / 8) * 8;
    const int unit = (first + column / kBlockUnit) * plan.cluster + rank;
    const int k = unit * kBlockUnit + column % kBlockUnit;
    const bool inside = k < p.in_features;
    copy_async(shared_address(rows + row * stride + column),
               x + static_cast<int64_t>(row) * p.in_features + (inside ? k : 0), inside);
  }
  commit_copies();
  wait_for_copies<0>();
}

// Starts the copy of the norm's weight, which depends on no predecessor.
__device__ inline void copy_norm(const SkinnyProduct& p, float* norm) {
  for (int k = threadIdx.x * 4; k < p.in_features; k += kThreads * 4) {
    copy_async(shared_address(norm + k), p.norm.weight + k, true);
  }
}

// The rounded norm of the residual's rows into shared memory. Few rows are shared by several warps
// each, so that all of a thread's loads are in flight at once. `norm` is the weight and room for
// the parts' sums.
__device__ inline void normalise_rows(const SkinnyProduct& p, const Plan& plan, __nv_bfloat16* rows,
                                      float* norm) {
  constexpr int kKept = 8;  // vectors of 4 that a lane keeps between the two passes
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Warps that share a row.
  const int parts = p.fixed_order || p.rows > 4 ? 1 : p.rows > 2 ? 2 : p.rows > 1 ? 4 : 8;
  const int first = (warp % parts * 32 + lane) * 4, step = parts * 128;
  const int columns = plan.units * kBlockUnit, stride = columns + kPad;
  float* sums = norm + p.in_features;  // [kWarps]
  for (int round = 0; round < p.rows; round += kWarps / parts) {
    const int row = round + warp / parts;
    const bool exists = row < p.rows;
    const float* x = static_cast<const float*>(p.x) + static_cast<int64_t>(row) * p.in_features;
    float kept[kKept][4] = {};
    float sum = 0;
    if (exists) {
#pragma unroll
      for (int j = 0; j < kKept; ++j) {
        if (first + j * step < p.in_features) load_vector(kept[j], x + first + j * step);
      }
#pragma unroll
      for (int j = 0; j < kKept; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) sum += kept[j][e] * kept[j][e];
      }
      for (int k = first + kKept * step; k < p.in_features; k += step) {
        float value[4];
        load_vector(value, x + k);
#pragma unroll
        for (int e = 0; e < 4; ++e) sum += value[e] * value[e];
      }
    }
    sum = warp_sum(sum);
    if (parts > 1) {
      if (lane == 0) sums[warp] = sum;
      __syncthreads();
      sum = 0;
      for (int part = 0; part < parts; ++part) sum += sums[warp / parts * parts + part];
    }
    if (!exists) continue;
    const float scale = rsqrtf(sum / static_cast<float>(p.in_features) + p.norm.eps);
    const auto finish = [&](float(&value)[4], int k) {
      float factor[4] = {};
      if (k < p.in_features) load_vector(factor, norm + k);
#pragma unroll
      for (int e = 0; e < 4; ++e) value[e] *= scale * factor[e];
      store_vector(rows + row * stride + k, value);
    };
#pragma unroll
    for (int j = 0; j < kKept; ++j) {
      if (first + j * step < columns) finish(kept[j], first + j * step);
    }
    for (int k = first + kKept * step; k < columns; k += step) {
      float value[4] = {};
      if (k < p.in_features) load_vector(value, x + k);
      finish(value, k);
    }
  }
}

}  // namespace nanovllm::cuda::skinny
