// Products of float32 in a fixed order: out[T,N] = x[T,K] W[N,K]^T, for `deterministic`. Every
// element is one chain of fused multiply-adds over K, whatever the number of rows. A block computes
// 64 x 64 elements, a thread 4 x 4 of them, from tiles of 16 along K; bound by the multiply-adds.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace nanovllm::cuda {
namespace {

constexpr int kTile = 64;   // rows and features of a block
constexpr int kDepth = 16;  // of K at a time
constexpr int kThreads = 256;
constexpr int kSide = 4;  // rows and features of a thread

struct Tile {
  float v[kDepth][kTile + 4];

  // Rows first.. of m[num_rows, k], columns k0..; zeros outside.
  __device__ void fill(const float* m, int64_t first, int64_t num_rows, int k, int k0) {
    for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
      const int row = i / kDepth, column = i % kDepth;
      const bool inside = first + row < num_rows && k0 + column < k;
      v[column][row] = inside ? m[(first + row) * k + k0 + column] : 0.f;
    }
  }
};

__global__ void __launch_bounds__(kThreads)
    linear_float_kernel(float* out, const float* x, const float* weight, int64_t rows, int n, int k,
                        bool accumulate) {
  release_successor();
  wait_for_predecessor();
  __shared__ Tile a, b;
  const int64_t first_row = int64_t{blockIdx.y} * kTile;
  const int first_feature = static_cast<int>(blockIdx.x) * kTile;
  const int row = threadIdx.x / 16 * kSide, feature = threadIdx.x % 16 * kSide;
  float sum[kSide][kSide] = {};
  for (int k0 = 0; k0 < k; k0 += kDepth) {
    a.fill(x, first_row, rows, k, k0);
    b.fill(weight, first_feature, n, k, k0);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kDepth; ++j) {
#pragma unroll
      for (int r = 0; r < kSide; ++r) {
#pragma unroll
        for (int f = 0; f < kSide; ++f)
          sum[r][f] = fmaf(a.v[j][row + r], b.v[j][feature + f], sum[r][f]);
      }
    }
    __syncthreads();
  }
  for (int r = 0; r < kSide && first_row + row + r < rows; ++r) {
    for (int f = 0; f < kSide && first_feature + feature + f < n; ++f) {
      float* target = out + (first_row + row + r) * n + first_feature + feature + f;
      *target = sum[r][f] + (accumulate ? *target : 0.f);
    }
  }
}

}  // namespace

void launch_linear_float(cudaStream_t stream, float* out, const float* x, const float* weight,
                         int64_t num_rows, int n, int k, bool accumulate) {
  launch(stream, linear_float_kernel, dim3(div_up(n, kTile), div_up(num_rows, kTile)), kThreads, 0,
         out, x, weight, num_rows, n, k, accumulate);
}

}  // namespace nanovllm::cuda
