// A model's stack of layers as data: what a layer computes, and its weights as its file has them,
// cut to one rank. Backend::compile makes a program of it.
//
// A layer turns the residual stream r, float32, into
//   c = out(core(in(before_core(r))));      r += residual_scale * after_core(c)
//   f = ffn(before_ffn(r));               r += residual_scale * after_ffn(f)
// where ffn(x) = down(act(gate) * up), gate and up = gate_up(x), or a mixture of such experts.
// Only the core looks at other rows than its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ops/host_matrix.h"

namespace nanovllm {

// RMSNorm. No weight = no norm: its input as it is.
struct Norm {
  std::vector<float> weight;  // [H], what its rows are multiplied by
  float eps = 0;

  bool is_absent() const { return weight.empty(); }
  bool operator==(const Norm&) const = default;
};

// The matrix W and bias b of a projection y = x W^T + b.
struct Matrix {
  std::vector<HostMatrix> pieces;  // [N_i, K] stacked along N: q, k, v; gate, up
  std::vector<float> bias;         // [N], or none

  int64_t in_features() const { return pieces.empty() ? 0 : pieces[0].cols; }
  int64_t out_features() const {
    int64_t rows = 0;
    for (const HostMatrix& piece : pieces) rows += piece.rows;
    return rows;
  }
  bool operator==(const Matrix&) const = default;
};

// Grouped-query attention over the paged KV cache. `in` gives the heads of q, then k, then v.
struct Attention {
  int num_heads = 0;     // query heads of this rank; a multiple of num_kv_heads
  int num_kv_heads = 0;  // of this rank
  int head_dim = 0;
  Norm q_norm, k_norm;  // [head_dim], of each head before it is turned
  // Instead, they are of all heads of all ranks at once: [num_heads * head_dim] and
  // [num_kv_heads * head_dim], this rank's part of the weights.
  bool norms_all_heads = false;
  int rotary_table = 0;  // of StackSpec::rotary_tables
  float scale = 0;       // multiplies q.k
  int window = 0;        // tokens a query sees, its own among them; 0 = all
  float soft_cap = 0;    // s <- soft_cap * tanh(s / soft_cap); 0 = none
  // [num_heads], a score a head that takes part in the softmax and has no value; or none.
  std::vector<float> sinks = {};

  bool operator==(const Attention&) const = default;
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
  Matrix gate_up;  // the rows of the gate, then those of up
  Activation activation = Activation::kSilu;
  Matrix down;

  bool operator==(const Dense&) const = default;
};

// How a row chooses its experts. Of its router's logits, in float32,
//   s = softmax or sigmoid of them, p = s + correction;
// open are all experts, or those of the num_active_groups groups (neighbours, all of one size)
// whose two largest p have the largest sum; chosen are the num_active largest p that are open. An
// expert's weight is its s, divided by the sum of the chosen ones' if they are renormalised, times
// `scale`. Of equals, the one with the lowest index comes first.
struct Routing {
  enum class Score { kSoftmax, kSigmoid } score = Score::kSoftmax;
  std::vector<float> correction = {};  // [experts], of the choice alone; or none
  int num_groups = 1, num_active_groups = 1;
  int num_active = 0;  // at most kMaxActiveExperts
  bool renormalise = false;
  float scale = 1;

  bool operator==(const Routing&) const = default;
};
inline constexpr int kMaxActiveExperts = 64;

// A mixture of experts (Shazeer et al., arXiv 1701.06538): a row's sum over those that it chooses,
// each times its weight, and over the shared one, times sigmoid(shared_gate(x)) if there is one.
struct Experts {
  Matrix router;  // [all experts, H], not split
  Routing routing;
  // This rank's, the router's rows [first, first + size): all of them, each with a slice of its
  // width, or a share of them whole. All have one shape, and biases or not.
  std::vector<Dense> experts;
  int first = 0;
  std::optional<Dense> shared = {};  // of another width, as a rule
  Matrix shared_gate = {};           // [1, H], not split; or none

  bool operator==(const Experts&) const = default;
};

struct LayerSpec {
  Norm before_core, after_core, before_ffn, after_ffn;
  Matrix in;
  std::variant<Attention> core;
  Matrix out;
  std::variant<Dense, Experts> ffn;
  float residual_scale = 1;

  bool operator==(const LayerSpec&) const = default;
};

// [max_positions, rotary_dim]: the first half of a row is cos, the second half sin (NeoX pairing:
// element i turns with element i + rotary_dim / 2).
struct RotaryTable {
  std::vector<float> cos_sin;
  int rotary_dim = 0;  // <= head_dim; 0 = a table that turns nothing
};

struct StackSpec {
  int hidden_size = 0;
  std::vector<LayerSpec> layers;
  Norm final_norm;  // of the last stage; absent in any other
  std::vector<RotaryTable> rotary_tables;
};

}  // namespace nanovllm
