// What the layer tail's kernel is given, and which features a block of it owns.
#pragma once

#include <span>

#include "backend/cuda/device/device.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/layer/layer_tail_exchange.cuh"
#include "backend/cuda/layer/layer_tail_ring.cuh"
#include "backend/cuda/linear/linear_skinny.h"
#include "ops/backend.h"

namespace nanovllm::cuda {

// The products in their order. Tiles of the first and third are 8 features, those of the second 8
// of gate and the same of up, those of the last 16.
enum TailStep { kAttentionStep, kGateUpStep, kMlpStep, kNextStep, kNumTailSteps };
__host__ __device__ constexpr int halves_of(int step) {
  return step == kGateUpStep || step == kNextStep ? 2 : 1;
}
__host__ __device__ constexpr int tile_features_of(int step) { return step == kNextStep ? 16 : 8; }

// Bytes between rows of weights in a slot. Half tiles are read 16 bytes a lane, in quarters of a
// warp of 2 rows and 4 columns: these rows are half of the banks apart. Whole tiles are read as
// matrices of 8 rows of 16 bytes: these are 16 bytes apart in the banks.
__host__ __device__ constexpr int slot_row_bytes(int halves) {
  return kSlotDepth * 2 + (halves == 1 ? 64 : 16);
}

// What both kernels are told of a product.
struct TailMatrix {
  const __nv_bfloat16* weight = nullptr;  // [N, K]
  const float* bias = nullptr;            // [N], or none
  int features = 0;                       // N, or N / 2 for gate and up
  int depth = 0;                          // K

  void describe(const SkinnyProduct& source, int step) {
    weight = static_cast<const __nv_bfloat16*>(source.weight);
    bias = source.bias;
    features = step == kGateUpStep ? source.out_features / 2 : source.out_features;
    depth = source.in_features;
  }
};

// And of the rows.
struct TailRows {
  NormParams norm, next_norm;
  int rows = 0;
  float inverse_hidden = 0;
  const __nv_bfloat16* attention = nullptr;  // [R, K of the first]
  float* residual = nullptr;                 // [R, H]
  __nv_bfloat16* out = nullptr;              // [R, N of the last], or [R, H]

  explicit TailRows(std::span<const SkinnyProduct, kNumTailSteps> products)
      : norm(products[kGateUpStep].norm),
        next_norm(products[kNextStep].norm),
        rows(products[kAttentionStep].rows),
        inverse_hidden(1.f / static_cast<float>(products[kGateUpStep].in_features)),
        attention(static_cast<const __nv_bfloat16*>(products[kAttentionStep].x)),
        residual(static_cast<float*>(products[kAttentionStep].out)),
        out(static_cast<__nv_bfloat16*>(products[kNextStep].out)) {}
};

struct TailProduct : TailMatrix {
  int tiles = 0;  // of each block but the last ones
};

struct TailParams : TailRows {
  using TailRows::TailRows;
  TailProduct products[kNumTailSteps];
  TailMemory* memory = nullptr;
};

#ifdef __CUDACC__

// The warps of a block that compute. The barrier's number is part of the instruction: from a
// register, as sync_threads() takes it, the kernel's code becomes another.
__device__ inline void meet_tail_warps() {
  asm volatile("bar.sync 1, %0;" ::"n"(kTailWarps * 32) : "memory");
}

// What a row's norm is scaled by, once they have met and left their sums of squares.
template <typename Shared>
__device__ float norm_scale(const TailRows& p, const Shared& shared, int row,
                            const NormParams& norm) {
  float sum = 0;
#  pragma unroll
  for (int warp = 0; warp < kTailWarps; ++warp) sum += shared.square_sums[warp][row];
  return rsqrtf(sum * p.inverse_hidden + norm.eps);
}

// A block of a tail's kernel: one warp streams the weights, which are older than all predecessors,
// and the others compute.
template <typename Warp, typename Params, typename Shared, typename Stream>
__device__ void run_tail_block(const Params& p, Shared& shared, Stream&& stream_weights) {
  if (threadIdx.x == 0) {
    shared.ring.barriers.init(kTailWarps);
    publish_barriers();
  }
  __syncthreads();
  release_successor();
  if (threadIdx.x >= kTailWarps * 32) {
    stream_weights();
  } else {
    Warp warp(p, shared);
    wait_for_predecessor();
    warp.run();
  }
}

struct TailTiles {
  int first, count;
};
__device__ inline TailTiles tiles_of_block(const TailParams& p, int step) {
  const TailProduct& product = p.products[step];
  const int total = (product.features + tile_features_of(step) - 1) / tile_features_of(step);
  const int first = static_cast<int>(blockIdx.x) * product.tiles;
  return {first, max(0, min(product.tiles, total - first))};
}

#endif

}  // namespace nanovllm::cuda
