// What the experiments with kernels share: device memory, numbers by chance, medians in turns, and
// the products of a layer's tail, as plain kernels compute them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <vector>

#include "backend/cuda/device/activation.cuh"
#include "backend/cuda/device/device.cuh"
#include "backend/cuda/linear/linear_skinny.h"

namespace nanovllm::cuda {

using Bf16 = __nv_bfloat16;

__host__ __device__ inline uint32_t hash(uint32_t x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

// In [centre - spread, centre + spread), times a power of two from 2^-scales to 2^scales; the same
// again after `period` numbers.
template <typename T>
__global__ void fill_kernel(T* out, int64_t count, int64_t period, uint32_t seed, float centre,
                            float spread, int scales) {
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const uint32_t x = hash(static_cast<uint32_t>(i % period) * 2 + hash(seed));
    const int scale = static_cast<int>(hash(x) % (2 * scales + 1)) - scales;
    store(out + i,
          ldexpf(centre + spread * 0x1p-31f * static_cast<float>(static_cast<int>(x)), scale));
  }
}

// Zeros.
template <typename T>
T* allocate(int64_t count) {
  T* p = nullptr;
  NANOVLLM_CUDA_CHECK(cudaMalloc(&p, count * sizeof(T)));
  NANOVLLM_CUDA_CHECK(cudaMemset(p, 0, count * sizeof(T)));
  NANOVLLM_CUDA_CHECK(cudaDeviceSynchronize());
  return p;
}

template <typename T>
T* random(int64_t count, float centre, float spread) {
  static uint32_t seed = 0;
  T* p = allocate<T>(count);
  fill_kernel<<<1024, 256>>>(p, count, count, ++seed, centre, spread, 0);
  NANOVLLM_CUDA_CHECK(cudaDeviceSynchronize());
  return p;
}

// As float32.
template <typename T>
std::vector<float> to_host(const void* p, int64_t count) {
  std::vector<T> values(count);
  NANOVLLM_CUDA_CHECK(cudaMemcpy(values.data(), p, count * sizeof(T), cudaMemcpyDeviceToHost));
  return std::vector<float>(values.begin(), values.end());
}

// ||got - want|| / ||want||; infinite where there is a NaN.
inline double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    norm += double{want[i]} * want[i];
  }
  return std::isfinite(error) && norm > 0 ? std::sqrt(error / norm) : INFINITY;
}

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Medians {
  double time;
  double ratio;  // to the first way's time in the same round
};

// Of time(way), all ways in turns; a round before warms up.
template <typename Time>
std::vector<Medians> in_turns(int rounds, int ways, const Time& time) {
  std::vector<std::vector<double>> times(ways), ratios(ways);
  for (int round = -1; round < rounds; ++round) {
    for (int way = 0; way < ways; ++way) {
      const double each = time(way);
      if (round < 0) continue;
      times[way].push_back(each);
      ratios[way].push_back(each / times[0].back());
    }
  }
  std::vector<Medians> medians;
  for (int way = 0; way < ways; ++way) medians.push_back({median(times[way]), median(ratios[way])});
  return medians;
}

inline cudaDeviceProp the_device() {
  cudaDeviceProp device;
  NANOVLLM_CUDA_CHECK(cudaGetDeviceProperties(&device, 0));
  if (device.major != 9) {
    std::fprintf(stderr, "%s is no Hopper GPU, for which these kernels are\n", device.name);
    std::exit(1);
  }
  return device;
}

// Of what work(stream) enqueues.
template <typename Work>
cudaGraphExec_t capture(const Work& work) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t instance;
  NANOVLLM_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  NANOVLLM_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  work(stream);
  NANOVLLM_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  NANOVLLM_CUDA_CHECK(cudaGraphInstantiate(&instance, graph, 0));
  NANOVLLM_CUDA_CHECK(cudaGraphDestroy(graph));
  return instance;
}

// What follows attention in Qwen3-0.6B: the products of its output, of gate and up, of the MLP's
// output and of the next layer's attention. The second and fourth are of the norm of the residual
// stream, to which the first and third are added.
constexpr int kLayers = 28, kHidden = 1024, kHeads = 2048, kWidth = 3072, kQkv = 4096;
constexpr float kEps = 1e-6f;
struct LayerProduct {
  const char* name;
  int out_features, in_features;
  Epilogue epilogue;

  bool has_norm() const { return epilogue != Epilogue::kAdd; }
  // Of a row's result.
  int width() const { return epilogue == Epilogue::kActAndMul ? out_features / 2 : out_features; }
};
constexpr std::array<LayerProduct, 4> kProducts = {
    {{"o", kHidden, kHeads, Epilogue::kAdd},
     {"gate_up", 2 * kWidth, kHidden, Epilogue::kActAndMul},
     {"down", kHidden, kWidth, Epilogue::kAdd},
     {"qkv", kQkv, kHidden, Epilogue::kStore}}};

using LayerWeights = std::array<Bf16*, kProducts.size()>;
inline std::array<LayerWeights, kLayers> random_layers() {
  std::array<LayerWeights, kLayers> layers;
  for (LayerWeights& weights : layers) {
    for (size_t i = 0; i < kProducts.size(); ++i) {
      weights[i] =
          random<Bf16>(int64_t{kProducts[i].out_features} * kProducts[i].in_features, 0, 0.03f);
    }
  }
  return layers;
}

// What the products read and write. Queries are taken to be the attention's output.
struct Activations {
  explicit Activations(int rows)
      : residual(random<float>(rows * kHidden, 0, 1)),
        mlp(random<Bf16>(rows * kWidth, 0, 1)),
        qkv(random<Bf16>(rows * kQkv, 0, 1)) {}

  std::array<const void*, 4> inputs() const { return {qkv, residual, mlp, residual}; }
  std::array<void*, 4> outputs() const { return {residual, mlp, residual, qkv}; }
  // All of product i, but the norm.
  void describe(FusedProduct& p, int i, int rows, const LayerWeights& weights) const {
    p.rows = rows;
    p.out_features = kProducts[i].out_features;
    p.in_features = kProducts[i].in_features;
    p.epilogue = kProducts[i].epilogue;
    p.weight = weights[i];
    p.x = inputs()[i];
    p.out = outputs()[i];
  }

  float* residual;  // [R, H]
  Bf16 *mlp, *qkv;
};

// One thread an element of [rows, gridDim.x * 64]. x is [rows, x_stride].
template <bool kHasNorm>
__global__ void plain_kernel(const Bf16* w, const std::conditional_t<kHasNorm, float, Bf16>* x,
                             int x_stride, const float* norm, int k, Epilogue epilogue, void* out) {
  const int feature = blockIdx.x * 64 + threadIdx.x, width = gridDim.x * 64, row = blockIdx.y;
  x += row * x_stride;
  float squares = 0;
  for (int i = 0; i < k && kHasNorm; ++i) squares += load(x + i) * load(x + i);
  const float scale = kHasNorm ? rsqrtf(squares / k + kEps) : 1;
  const auto dot = [&](int of) {
    double sum = 0;
    for (int i = 0; i < k; ++i) {
      const float y = load(x + i);
      sum +=
          double{load(w + int64_t{of} * k + i)} * (kHasNorm ? round_to_bfloat16(y * norm[i]) : y);
    }
    return round_to_bfloat16(static_cast<float>(sum) * scale);
  };
  const int at = row * width + feature;
  float y = dot(feature);
  if (epilogue == Epilogue::kAdd) {
    static_cast<float*>(out)[at] += y;
  } else {
    if (epilogue == Epilogue::kActAndMul) {
      y = gate_and_mul<Activation::kSilu>(y, dot(width + feature));
    }
    store(static_cast<Bf16*>(out) + at, y);
  }
}
inline void plain_product(const LayerProduct& p, int rows, const Bf16* w, const void* x,
                          int x_stride, const float* norm, void* out) {
  const dim3 grid(p.width() / 64, rows);
  if (p.has_norm()) {
    plain_kernel<true><<<grid, 64>>>(w, static_cast<const float*>(x), x_stride, norm, p.in_features,
                                     p.epilogue, out);
  } else {
    plain_kernel<false><<<grid, 64>>>(w, static_cast<const Bf16*>(x), x_stride, norm, p.in_features,
                                      p.epilogue, out);
  }
}

}  // namespace nanovllm::cuda
