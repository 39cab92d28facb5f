#include "ops/stack_work.h"

#include <gtest/gtest.h>

#include <utility>

namespace nanovllm {
namespace {

Matrix sized_matrix(int64_t rows, int64_t cols) {
  Matrix matrix;
  matrix.pieces.push_back({.rows = rows, .cols = cols, .row_stride = cols});
  return matrix;
}

LayerSpec dense_layer() {
  LayerSpec layer;
  layer.in = sized_matrix(160, 64);
  layer.core =
      Attention{.num_heads = 3, .num_kv_heads = 1, .head_dim = 32, .q_norm = {}, .k_norm = {}};
  layer.out = sized_matrix(64, 96);
  layer.ffn = Dense{sized_matrix(200, 64), Activation::kSilu, sized_matrix(64, 100)};
  return layer;
}

constexpr double kAttentionWeights = 160 * 64 + 64 * 96, kMlpWeights = 200 * 64 + 64 * 100;

TEST(StackWork, CountsTwoOperationsAWeightAndFourAHeadsElement) {
  StackSpec spec;
  spec.layers = {dense_layer(), dense_layer()};
  EXPECT_EQ(work_of(spec, DType::kBFloat16),
            (StackWork{.flops_per_token = 2 * 2 * (kAttentionWeights + kMlpWeights),
                       .flops_per_seen_token = 2 * 4 * 96,
                       .kv_bytes_per_seen_token = 2 * 2 * 32 * 2}));
  EXPECT_EQ(work_of(spec, DType::kFloat32).kv_bytes_per_seen_token, 2 * 2 * 32 * 4);
}

TEST(StackWork, CountsAWindowWithEachToken) {
  StackSpec spec;
  spec.layers = {dense_layer()};
  std::get<Attention>(spec.layers[0].core).window = 10;
  EXPECT_EQ(work_of(spec, DType::kBFloat16),
            (StackWork{.flops_per_token = 2 * (kAttentionWeights + kMlpWeights),
                       .window_flops_per_token = 10 * 4 * 96}));
}

TEST(StackWork, CountsARecurrentRuleWithEachToken) {
  StackSpec spec;
  spec.layers = {dense_layer()};
  spec.layers[0].core =
      GatedDelta{.num_key_heads = 1, .num_value_heads = 2, .key_dim = 16, .value_dim = 32};
  // Two products with the state and one to fold it; two with the keys and two with the values of
  // half a chunk's 64 rows.
  const double rule = 2 * 2 * (3 * 16 * 32 + 32 * 2 * (16 + 32));
  EXPECT_EQ(work_of(spec, DType::kBFloat16),
            (StackWork{.flops_per_token = 2 * (kAttentionWeights + kMlpWeights) + rule}));
}

// Expert parallelism or not: a rank has a part of the experts, of which a token goes to some.
TEST(StackWork, CountsOfExpertsThoseThatATokenGoesTo) {
  StackSpec spec;
  spec.layers = {dense_layer()};
  const Dense expert = {sized_matrix(40, 64), Activation::kSilu, sized_matrix(64, 20)};
  Experts experts;
  experts.router = sized_matrix(8, 64);
  experts.routing.num_active = 2;
  experts.experts.assign(4, expert);
  experts.shared = expert;
  experts.shared_gate = sized_matrix(1, 64);
  spec.layers[0].ffn = std::move(experts);
  const double size = 40 * 64 + 64 * 20;
  EXPECT_EQ(work_of(spec, DType::kBFloat16).flops_per_token,
            2 * (kAttentionWeights + 8 * 64 + 1 * 64 + size + 4 * size * 2 / 8));
}

}  // namespace
}  // namespace nanovllm
