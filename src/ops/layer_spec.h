// A model's stack of layers as data: what a layer computes, and its weights as the file has them,
// one rank's part of each. Backend::compile makes a program of it.
//
// A layer turns the residual stream r, float32, into
//   c = out(core(in(before_core(r))));      r += residual_scale * after_core(c)
//   f = ffn(before_ffn(r));               r += residual_scale * after_ffn(f)
// where ffn(x) = down(act(gate) * up), gate and up = gate_up(x), or a mixture of such experts.
// The core is attention or a recurrent rule: only there does a row (a token) depend on other rows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ops/host_matrix.h"

namespace nanovllm {

// RMSNorm. An empty weight = no norm: its input is passed on unchanged.
struct Norm {
  // [H], the factors of its result.
  std::vector<float> weight;
  float eps = 0;

  bool is_absent() const { return weight.empty(); }
  bool operator==(const Norm&) const = default;
};

// The matrix W and bias b of a projection y = x W^T + b.
struct Matrix {
  // [N_i, K], stacked along N: q, k, v; gate, up.
  std::vector<HostMatrix> pieces;
  // [N], or empty.
  std::vector<float> bias;

  int64_t in_features() const { return pieces.empty() ? 0 : pieces[0].cols; }
  int64_t out_features() const {
    int64_t rows = 0;
    for (const HostMatrix& piece : pieces) rows += piece.rows;
    return rows;
  }
  bool operator==(const Matrix&) const = default;
};

// Grouped-query attention over the paged KV cache. `in` gives the heads of q, then k, then v, then
// those of the gate, if there is one.
struct Attention {
  // Query heads of this rank; a multiple of num_kv_heads.
  int num_heads = 0;
  // Of this rank.
  int num_kv_heads = 0;
  int head_dim = 0;
  // Of queries and keys before they are rotated: of each head, weights [head_dim]; or, with
  // norms_all_heads, over the heads of all ranks together, and the weights are this rank's part,
  // [num_heads * head_dim] and [num_kv_heads * head_dim].
  Norm q_norm, k_norm;
  bool norms_all_heads = false;
  // Index in StackSpec::rotary_tables.
  int rotary_table = 0;
  // Multiplies q.k.
  float scale = 0;
  // Tokens that a query sees, its own included; 0 = all.
  int window = 0;
  // s <- soft_cap * tanh(s / soft_cap); 0 = none.
  float soft_cap = 0;
  // Attention sinks, [num_heads] or empty: a further score per head, which takes part in the
  // softmax but has no value to add.
  std::vector<float> sinks = {};
  // The result is multiplied by the sigmoid of a gate, which is as wide as q.
  bool has_gate = false;

  bool operator==(const Attention&) const = default;
};

// The gated delta rule (Yang et al., arXiv 2412.06464), with a state S [key_dim, value_dim] for
// each value head instead of keys and values. `in` gives the heads of q and k, those of v and of a
// gate z, and two numbers for each value head, b and a. The channels of q, k and v go through a
// causal convolution, which sees nothing before the text, and SiLU. Then, in float32, for each
// value head:
//   q = q / sqrt(sum(q^2) + 1e-6) / sqrt(key_dim),   k = k / sqrt(sum(k^2) + 1e-6)
//   beta = beta_scale sigmoid(b),   g = decay softplus(a + dt_bias)
//   S = e^g S;   S = S + k (beta (v - S^T k))^T;   o = S^T q
// and the result is out_norm(o) * silu(z).
struct GatedDelta {
  // Of this rank; num_value_heads is a multiple of num_key_heads.
  int num_key_heads = 0;
  int num_value_heads = 0;
  // Multiples of 8.
  int key_dim = 0;
  int value_dim = 0;
  // Value head h reads key head h % num_key_heads, instead of neighbours sharing one.
  bool key_heads_take_turns = false;
  // Taps of the convolution; the last one is for the row itself.
  int conv_width = 0;
  // [conv_width, channels of q, k and v]
  std::vector<float> conv_weight = {};
  // [num_value_heads], none of them above 0.
  std::vector<float> decay = {};
  // [num_value_heads]
  std::vector<float> dt_bias = {};
  float beta_scale = 1;
  // [value_dim], of each head.
  Norm out_norm = {};

  int key_head_of(int value_head) const {
    return key_heads_take_turns ? value_head % num_key_heads
                                : value_head / (num_value_heads / num_key_heads);
  }
  int64_t num_channels() const {
    return int64_t{2} * num_key_heads * key_dim + int64_t{num_value_heads} * value_dim;
  }
  bool operator==(const GatedDelta&) const = default;
};

enum class Activation {
  kSilu,
  kGelu,
  kGeluTanh,
  // gpt-oss's, which bounds both factors: g sigmoid(1.702 g) (u + 1), where g = min(gate, 7) and
  // u = up within -7 .. 7.
  kClampedSwiglu,
};

// A gated feed-forward block.
struct Dense {
  // The rows of the gate, then those of up.
  Matrix gate_up;
  Activation activation = Activation::kSilu;
  Matrix down;

  bool operator==(const Dense&) const = default;
};

// How a row chooses its experts. Of its router's logits, in float32,
//   s = softmax or sigmoid of them, p = s + correction.
// 1. With groups (num_groups of equal size, neighbours in order), p becomes 0 outside of those
//    num_active_groups groups whose two largest p have the largest sum.
// 2. The num_active experts with the largest p are chosen. Of equals, the lowest index wins.
// 3. The weight of a chosen expert is its s, divided by the sum of the chosen ones' s if
//    `renormalise`, times `scale`.
struct Routing {
  enum class Score { kSoftmax, kSigmoid } score = Score::kSoftmax;
  // [experts] or empty. Only for the choice, not for the weights.
  std::vector<float> correction = {};
  int num_groups = 1, num_active_groups = 1;
  // At most kMaxActiveExperts.
  int num_active = 0;
  bool renormalise = false;
  float scale = 1;

  bool operator==(const Routing&) const = default;
};
inline constexpr int kMaxActiveExperts = 64;

// A mixture of experts (Shazeer et al., arXiv 1701.06538). Its result for a row is the sum of the
// chosen experts' results, each times its weight, plus that of the shared expert, if there is one,
// times sigmoid(shared_gate(x)), if there is a shared gate.
struct Experts {
  // [all experts, H], whole on every rank.
  Matrix router;
  Routing routing;
  // This rank's: number first .. first + size - 1. Without expert parallelism these are all
  // experts, each cut in its width; with it, some whole ones. All have the same shape and
  // activation, and all or none have biases.
  std::vector<Dense> experts;
  int first = 0;
  // Usually of another width.
  std::optional<Dense> shared = {};
  // [1, H], whole on every rank; or empty.
  Matrix shared_gate = {};

  bool operator==(const Experts&) const = default;
};

struct LayerSpec {
  Norm before_core, after_core, before_ffn, after_ffn;
  Matrix in;
  std::variant<Attention, GatedDelta> core;
  Matrix out;
  std::variant<Dense, Experts> ffn;
  float residual_scale = 1;

  bool operator==(const LayerSpec&) const = default;
};

// Of the rotary position embedding.
struct RotaryTable {
  // [max_positions, rotary_dim]: the first half of a row is cos, the second half sin. Element i of
  // a head is rotated with element i + rotary_dim / 2 (NeoX pairing).
  std::vector<float> cos_sin;
  // <= head_dim; 0 = nothing is rotated.
  int rotary_dim = 0;
};

struct StackSpec {
  int hidden_size = 0;
  std::vector<LayerSpec> layers;
  // Absent only if further layers follow that are not in this stack.
  Norm final_norm;
  std::vector<RotaryTable> rotary_tables;
};

}  // namespace nanovllm
