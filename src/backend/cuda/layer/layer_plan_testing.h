// What tests of plans plan for: devices, and stacks of layers without weights.
#pragma once

#include <vector>

#include "backend/cuda/layer/layer_plan.h"

namespace nanovllm::cuda {

inline TailTraits traits_of(int major, int minor, int multiprocessors, size_t block_bytes,
                            size_t multiprocessor_bytes) {
  TailTraits traits;
  cudaDeviceProp& properties = traits.device.properties;
  properties.major = major;
  properties.minor = minor;
  properties.multiProcessorCount = multiprocessors;
  properties.sharedMemPerBlockOptin = block_bytes << 10;
  properties.sharedMemPerMultiprocessor = multiprocessor_bytes << 10;
  traits.device.has_programmatic_launch = major >= 9;
  traits.device.has_wgmma = major == 9;
  return traits;
}

// As far as plans go they are one device.
inline TailTraits hopper() {
  TailTraits traits = traits_of(9, 0, 132, 227, 228);
  traits.has_tail_kernel = true;
  return traits;
}
inline TailTraits h100() { return hopper(); }
inline TailTraits h200() { return hopper(); }
inline TailTraits a100() { return traits_of(8, 0, 108, 163, 164); }
inline TailTraits rtx4090() { return traits_of(8, 9, 128, 99, 100); }
inline TailTraits rtx5090() { return traits_of(12, 0, 170, 99, 100); }

struct Sizes {
  int hidden, heads, kv_heads, head_dim, width, layers;
};
constexpr Sizes kQwen3Small = {1024, 16, 8, 128, 3072, 28};
constexpr Sizes kQwen3Large = {4096, 32, 8, 128, 12288, 36};

inline Matrix matrix(int64_t rows, int64_t cols) {
  return {.pieces = {{.rows = rows, .cols = cols, .row_stride = cols}}, .bias = {}};
}

inline StackSpec spec_of(const Sizes& s) {
  const Norm norm = {std::vector<float>(s.hidden, 1.0f), 1e-6f};
  LayerSpec layer;
  layer.before_core = layer.before_ffn = norm;
  layer.in = matrix((s.heads + 2 * s.kv_heads) * s.head_dim, s.hidden);
  layer.core = Attention{.num_heads = s.heads,
                         .num_kv_heads = s.kv_heads,
                         .head_dim = s.head_dim,
                         .q_norm = {},
                         .k_norm = {}};
  layer.out = matrix(s.hidden, s.heads * s.head_dim);
  layer.ffn = Dense{matrix(2 * s.width, s.hidden), Activation::kSilu, matrix(s.hidden, s.width)};
  return {.hidden_size = s.hidden,
          .layers = std::vector<LayerSpec>(s.layers, layer),
          .final_norm = norm,
          .rotary_tables = {{.cos_sin = {}, .rotary_dim = s.head_dim}}};
}

inline std::vector<PathChoice> plan(const StackSpec& spec, const TailTraits& traits,
                                    DType act = DType::kBFloat16) {
  std::vector<std::vector<TailPath>> layers;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    layers.push_back(plan_layer(spec, i, act, traits));
  }
  return summary(layers);
}

}  // namespace nanovllm::cuda
