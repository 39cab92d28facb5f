// Products of tiles of experts' rows of any shape, in float32 and bfloat16: where there is no
// kernel for tensor cores. A warp computes all rows of a tile and some features, and the warps of a
// block neighbouring ones, for which they read the same rows; bound by the multiply-adds.
#include <algorithm>

#include "backend/cuda/device/activation.cuh"
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/warp_rows.cuh"
#include "backend/cuda/experts/experts.h"

namespace nanovllm::cuda {
namespace {

constexpr int kRows = kPlainTileRows, kFeatures = 4;
constexpr int kWarps = 8;

// Column c of an item's features is feature first + c; where there is a gate, gate and up of
// output (first + c) / 2 in turn.
template <typename T, int kVector>
__global__ void __launch_bounds__(kWarps * 32, 2)
    expert_product_kernel(const __grid_constant__ ExpertProduct p, int groups) {
  wait_for_predecessor();
  release_successor();
  const int width = p.is_gated ? p.out_features / 2 : p.out_features;
  const int items = *p.num_tiles * groups;
  for (int item = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32); item < items;
       item += static_cast<int>(gridDim.x) * kWarps) {
    const RowTile tile = p.tiles[item / groups];
    const int first = item % groups * kFeatures;
    const T *x[kRows], *w[kFeatures];
    float bias[kFeatures] = {}, sum[kRows][kFeatures] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int pair = tile.first_row + min(r, tile.num_rows - 1);
      x[r] = static_cast<const T*>(p.x) +
             int64_t{p.tokens == nullptr ? pair : p.tokens[pair]} * p.in_features;
    }
#pragma unroll
    for (int f = 0; f < kFeatures; ++f) {
      const int c = min(first + f, p.out_features - 1);
      const int64_t feature =
          int64_t{tile.expert} * p.out_features + (p.is_gated ? c % 2 * width + c / 2 : c);
      w[f] = static_cast<const T*>(p.weight) + feature * p.in_features;
      if (p.bias != nullptr) bias[f] = p.bias[feature];
    }
    multiply_rows<kVector>(sum, x, w, p.in_features);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      T* const out = static_cast<T*>(p.out) + int64_t{tile.first_row + r} * width;
      float y[kFeatures];
#pragma unroll
      for (int f = 0; f < kFeatures; ++f) {
        y[f] = warp_sum(sum[r][f]) + bias[f];
        if (threadIdx.x % 32 != 0 || r >= tile.num_rows || first + f >= p.out_features) continue;
        if (!p.is_gated) store(out + first + f, y[f]);
        if (p.is_gated && f % 2 == 1) {
          store(out + (first + f) / 2, gate_and_mul(p.activation, y[f - 1], y[f]));
        }
      }
    }
  }
}

}  // namespace

void launch_expert_product(cudaStream_t stream, const ExpertProduct& product, DType dtype,
                           int num_multiprocessors) {
  const int groups = div_up(product.out_features, kFeatures);
  with_act_type(dtype, [&]<typename T>(T) {
    const auto kernel = product.in_features % kVectorOf<T> == 0
                            ? expert_product_kernel<T, kVectorOf<T>>
                            : expert_product_kernel<T, 1>;
    launch(stream, kernel,
           std::min(div_up(int64_t{product.max_tiles} * groups, kWarps), num_multiprocessors * 4),
           kWarps * 32, 0, product, groups);
  });
}

}  // namespace nanovllm::cuda
