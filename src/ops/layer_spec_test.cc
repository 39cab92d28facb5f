// Models on paper: their layers as data, so that a field that a spec lacks shows before a program
// needs it.
#include "ops/layer_spec.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace nanovllm {
namespace {

Matrix matrix(int64_t rows, int64_t cols) {
  return {.pieces = {{.rows = rows, .cols = cols, .row_stride = cols}}, .bias = {}};
}
Norm norm(int size) { return {.weight = std::vector<float>(size, 1.0f), .eps = 1e-6f}; }

// 270M: five layers with a window, of 512 tokens and base 10,000, then one without.
StackSpec gemma3() {
  StackSpec spec = {.hidden_size = 640, .layers = {}, .final_norm = norm(640), .rotary_tables = {}};
  spec.rotary_tables.resize(2, {.cos_sin = {}, .rotary_dim = 256});  // of 1e6, and of 1e4
  for (int i = 0; i < 18; ++i) {
    const bool is_local = i % 6 != 5;
    LayerSpec layer;
    layer.before_core = layer.after_core = layer.before_ffn = layer.after_ffn = norm(640);
    layer.in = matrix((4 + 2) * 256, 640);
    layer.core = Attention{.num_heads = 4,
                           .num_kv_heads = 1,
                           .head_dim = 256,
                           .q_norm = norm(256),
                           .k_norm = norm(256),
                           .rotary_table = is_local ? 1 : 0,
                           .scale = 1 / 16.0f,
                           .window = is_local ? 512 : 0};
    layer.out = matrix(640, 4 * 256);
    layer.ffn = Dense{matrix(2 * 2048, 640), Activation::kGeluTanh, matrix(640, 2048)};
    spec.layers.push_back(std::move(layer));
  }
  return spec;
}

TEST(LayerSpec, HoldsGemma3) {
  const StackSpec spec = gemma3();
  int windows = 0;
  for (const LayerSpec& layer : spec.layers) {
    const auto& attention = std::get<Attention>(layer.core);
    windows += attention.window > 0;
    EXPECT_EQ(attention.rotary_table == 1, attention.window > 0);
    EXPECT_EQ(layer.in.out_features(), (4 + 2) * 256);
  }
  EXPECT_EQ(windows, 15);
}

TEST(LayerSpec, HoldsQwen35WithTheDeltaRuleAsAnotherCore) {
  std::vector<LayerSpec> layers(8);
  for (size_t i = 0; i < layers.size(); ++i) {
    LayerSpec& layer = layers[i];
    layer.before_core = layer.before_ffn = norm(2048);
    layer.out = matrix(2048, 4096);
    layer.ffn = Dense{matrix(2 * 6144, 2048), Activation::kSilu, matrix(2048, 6144)};
    if (i % 4 == 3) {
      layer.in = matrix((2 * 16 + 2 * 2) * 256, 2048);  // q, k, v, its gate
      Attention attention;
      attention.num_heads = 16;
      attention.num_kv_heads = 2;
      attention.head_dim = 256;
      attention.q_norm = attention.k_norm = norm(256);
      attention.has_gate = true;
      layer.core = attention;
    } else {
      layer.in = matrix((2 * 16 + 2 * 32) * 128 + 2 * 32, 2048);  // q, k, v, z; b, a
      layer.core = GatedDelta{.num_key_heads = 16,
                              .num_value_heads = 32,
                              .key_dim = 128,
                              .value_dim = 128,
                              .conv_width = 4,
                              .conv_weight = std::vector<float>((2 * 16 + 32) * 128 * 4),
                              .decay = std::vector<float>(32),
                              .dt_bias = std::vector<float>(32),
                              .out_norm = norm(128)};
    }
  }
  EXPECT_EQ(std::ranges::count_if(
                layers, [](const auto& l) { return std::holds_alternative<GatedDelta>(l.core); }),
            6);
}

TEST(LayerSpec, APipelineStageIsAPartOfTheLayersWithoutTheFinalNorm) {
  StackSpec stage = gemma3();
  stage.layers.resize(9);
  stage.final_norm = {};
  EXPECT_TRUE(stage.final_norm.is_absent());
  EXPECT_EQ(stage.layers.back(), gemma3().layers[8]);
}

}  // namespace
}  // namespace nanovllm
