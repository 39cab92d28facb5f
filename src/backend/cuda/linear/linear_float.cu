// Products whose result is float32 and whose elements' sums have one order, whatever the number of
// rows: out[T,N] = x[T,K] W[N,K]^T + bias. They are those of float32 with `deterministic`, bound by
// the multiply-adds, and routers' of few rows, which are bound by latency: a warp has one element.
#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/device/warp_rows.cuh"
#include "backend/cuda/linear/linear_float.h"

namespace nanovllm::cuda {
namespace {

constexpr int kWarps = 4;

// The least of blocks a multiprocessor leaves registers enough for all loads of a batch.
template <typename T, int kVector, int kRows, int kFeatures>
__global__ void __launch_bounds__(kWarps * 32, 4)
    linear_float_kernel(float* out, const T* x, const T* weight, const float* bias, int rows, int n,
                        int k) {
  release_successor();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(blockIdx.y) * kRows;
  const int feature = static_cast<int>(blockIdx.x * kWarps + threadIdx.x / 32) * kFeatures;
  const T *x_rows[kRows], *w_rows[kFeatures];
#pragma unroll
  for (int r = 0; r < kRows; ++r) x_rows[r] = x + int64_t{min(row + r, rows - 1)} * k;
#pragma unroll
  for (int f = 0; f < kFeatures; ++f) w_rows[f] = weight + int64_t{min(feature + f, n - 1)} * k;
  if constexpr (kRows == 1) {
    for (int i = lane * 64; i < k; i += 32 * 64) prefetch_line(w_rows[0] + i);
  }
  wait_for_predecessor();
  float sum[kRows][kFeatures] = {};
  multiply_rows<kVector>(sum, x_rows, w_rows, k);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int f = 0; f < kFeatures; ++f) {
      const float y = warp_sum(sum[r][f]);
      if (lane != 0 || row + r >= rows || feature + f >= n) continue;
      out[int64_t{row + r} * n + feature + f] = y + (bias == nullptr ? 0.f : bias[feature + f]);
    }
  }
}

}  // namespace

void launch_linear_float(cudaStream_t stream, float* out, const void* x, DType dtype,
                         const void* weight, const float* bias, int num_rows, int n, int k) {
  with_act_type(dtype, [&]<typename T>(T) {
    const auto run = [&](auto kernel, int rows, int features) {
      launch(stream, kernel, dim3(div_up(n, kWarps * features), div_up(num_rows, rows)),
             kWarps * 32, 0, out, static_cast<const T*>(x), static_cast<const T*>(weight), bias,
             num_rows, n, k);
    };
    constexpr int kVector = kVectorOf<T>;
    if (num_rows <= 8) {
      run(k % kVector == 0 ? linear_float_kernel<T, kVector, 1, 1>
                           : linear_float_kernel<T, 1, 1, 1>,
          1, 1);
    } else {
      run(k % kVector == 0 ? linear_float_kernel<T, kVector, 8, 4>
                           : linear_float_kernel<T, 1, 8, 4>,
          8, 4);
    }
  });
}

}  // namespace nanovllm::cuda
