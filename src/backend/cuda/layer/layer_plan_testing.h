// What tests of plans plan for: devices, and stacks of layers without weights.
#pragma once

#include <vector>

#include "backend/cuda/backend/plan_rows.h"
#include "backend/cuda/device/device_traits_testing.h"
#include "backend/cuda/layer/layer_plan.h"
#include "backend/cuda/layer/layer_tail.h"

namespace nanovllm::cuda {

// Of an engine that has the GPU for itself.
inline TailTraits traits_of(const Gpu& gpu) {
  return {.device = gpu.traits, .has_tail_kernel = runs_tail_kernels(gpu.traits)};
}
inline TailTraits h100() { return traits_of(kH100); }
inline TailTraits h200() { return traits_of(kH200); }
inline TailTraits a100() { return traits_of(kA100); }
inline TailTraits rtx4090() { return traits_of(kRtx4090); }
inline TailTraits rtx5090() { return traits_of(kRtx5090); }

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

// [num_layers][rows - 1]
inline std::vector<std::vector<TailPath>> tails_of(const StackSpec& spec, const TailTraits& traits,
                                                   DType act = DType::kBFloat16) {
  std::vector<std::vector<TailPath>> layers;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    layers.push_back(plan_layer(spec, i, act, traits));
  }
  return layers;
}
// The same by ranges of rows and layers.
inline std::vector<PathChoice> plan(const StackSpec& spec, const TailTraits& traits,
                                    DType act = DType::kBFloat16) {
  std::vector<PathChoice> choices = stack_choices(spec, {.dtype = act, .max_num_tokens = 8192},
                                                  tails_of(spec, traits, act), traits, "");
  std::erase_if(choices, [](const PathChoice& choice) { return choice.part != "tail"; });
  return choices;
}

}  // namespace nanovllm::cuda
