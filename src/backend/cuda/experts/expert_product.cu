// Products of tiles of experts' rows of any shape, in float32 and bfloat16: where there is no
// kernel for tensor cores. Every element is one chain of fused multiply-adds over K, whatever the
// tile. A block computes 64 x 64 elements at a time, a thread 4 x 4 of them, from tiles of 16 along
// K; bound by the multiply-adds.
#include <algorithm>

#include "backend/cuda/experts/experts.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/layer/activation.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kTile = kPlainTileRows;  // rows and features of an item
constexpr int kDepth = 16;             // of K at a time
constexpr int kThreads = 256;
constexpr int kSide = 4;  // rows and features of a thread

// [K][rows]; row(i) is where the tile's row i is in memory, or null: zeros.
template <typename T, typename Row>
__device__ void fill(float (&tile)[kDepth][kTile + 4], int k, int k0, Row&& row) {
  for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
    const T* source = row(i / kDepth);
    const int column = k0 + i % kDepth;
    tile[i % kDepth][i / kDepth] = source != nullptr && column < k ? load(source + column) : 0.f;
  }
}

// Column c of an item's features is feature first + c; where there is a gate, gate and up of
// output (first + c) / 2 in turn.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    expert_product_kernel(const __grid_constant__ ExpertProduct p, int feature_tiles) {
  wait_for_predecessor();
  release_successor();
  __shared__ float a[kDepth][kTile + 4], b[kDepth][kTile + 4];
  const int width = p.is_gated ? p.out_features / 2 : p.out_features;
  const int row = static_cast<int>(threadIdx.x) / 16 * kSide;
  const int column = static_cast<int>(threadIdx.x) % 16 * kSide;
  const auto feature_of = [&](int c) { return p.is_gated ? c % 2 * width + c / 2 : c; };
  for (int item = static_cast<int>(blockIdx.x); item < *p.num_tiles * feature_tiles;
       item += static_cast<int>(gridDim.x)) {
    const ExpertTile tile = p.tiles[item / feature_tiles];
    const int first = item % feature_tiles * kTile;
    const int64_t features_before = static_cast<int64_t>(tile.expert) * p.out_features;
    const auto x_row = [&](int r) -> const T* {
      if (r >= tile.num_rows) return nullptr;
      const int pair = tile.first_row + r;
      return static_cast<const T*>(p.x) +
             static_cast<int64_t>(p.tokens == nullptr ? pair : p.tokens[pair]) * p.in_features;
    };
    const auto w_row = [&](int c) -> const T* {
      if (first + c >= p.out_features) return nullptr;
      return static_cast<const T*>(p.weight) +
             (features_before + feature_of(first + c)) * p.in_features;
    };
    float sum[kSide][kSide] = {};
    for (int k0 = 0; k0 < p.in_features; k0 += kDepth) {
      fill<T>(a, p.in_features, k0, x_row);
      fill<T>(b, p.in_features, k0, w_row);
      __syncthreads();
#pragma unroll
      for (int j = 0; j < kDepth; ++j) {
#pragma unroll
        for (int r = 0; r < kSide; ++r) {
#pragma unroll
          for (int f = 0; f < kSide; ++f)
            sum[r][f] = fmaf(a[j][row + r], b[j][column + f], sum[r][f]);
        }
      }
      __syncthreads();
    }
    for (int r = 0; r < kSide && row + r < tile.num_rows; ++r) {
      T* out = static_cast<T*>(p.out) + static_cast<int64_t>(tile.first_row + row + r) * width;
      for (int f = 0; f < kSide && first + column + f < p.out_features; ++f) {
        const int c = first + column + f;
        if (p.bias != nullptr) sum[r][f] += p.bias[features_before + feature_of(c)];
        if (!p.is_gated) store(out + c, sum[r][f]);
        if (p.is_gated && f % 2 == 1)
          store(out + c / 2, gate_and_mul(p.activation, sum[r][f - 1], sum[r][f]));
      }
    }
  }
}

}  // namespace

void launch_expert_product(cudaStream_t stream, const ExpertProduct& product, DType dtype,
                           int num_multiprocessors) {
  const int feature_tiles = div_up(product.out_features, kTile);
  with_act_type(dtype, [&](auto tag) {
    launch(stream, expert_product_kernel<decltype(tag)>,
           std::min(product.max_tiles * feature_tiles, num_multiprocessors * 8), kThreads, 0,
           product, feature_tiles);
  });
}

}  // namespace nanovllm::cuda
