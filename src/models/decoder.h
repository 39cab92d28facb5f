// The decoder that Llama and its descendants share: embedding, layers of attention and MLP with
// RMSNorm before each, a last norm and the head. A family says how it differs.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "models/model.h"

namespace nanovllm {

// RMSNorm of queries and keys before they are rotated: of each head, or over all heads together.
enum class QkNorm { kNone, kEachHead, kAllHeads };

// What the checkpoint calls the norms of a layer; null = the family has no such norm.
struct NormNames {
  const char* before_attention = "input_layernorm";
  const char* after_attention = nullptr;
  const char* before_mlp = "post_attention_layernorm";
  const char* after_mlp = nullptr;
};

// Names and kinds of the parts of a mixture of experts. Sizes are in the config.
struct ExpertOptions {
  std::string block = "mlp";
  std::string router = "gate";
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
  // If the checkpoint has this, it is a stack with the rows of both gate and up.
  std::string gate_up = "gate_up_proj";
  // There, rows of gate and up take turns.
  bool alternates = false;
  // Of the router, gate, up and down.
  bool has_biases = false;
  // Instead of the config's hidden_act.
  std::optional<Activation> activation = {};
  std::string shared = "shared_expert";
  bool has_shared_gate = false;
  // The router has an e_score_correction_bias (see Routing::correction).
  bool has_correction = false;
  Routing::Score score = Routing::Score::kSoftmax;
};

// What the checkpoint has of recurrent layers (GatedDelta).
struct DeltaOptions {
  enum class Names {
    // in_proj_qkv, in_proj_z, in_proj_b and in_proj_a
    kUsual,
    // in_proj_qkvz and in_proj_ba: for each key head its rows of q, k, v and z, or of b and a;
    // GGUF files have in_proj_qkv and in_proj_z, unless they are old
    kFusedByKeyHead,
    // q_proj, k_proj, v_proj, g_proj, b_proj and a_proj, a convolution for each of q, k and v,
    // o_norm and o_proj
    kApart,
  } names = Names::kUsual;
  float beta_scale = 1;
  // Of the norm of results; 0 = the config's.
  float eps = 0;
  // Where recurrent layers have other norms than layers of attention, and what some files call
  // them.
  std::optional<NormNames> norms = {}, older_norms = {};
};

struct DecoderOptions {
  QkNorm qk_norm = QkNorm::kNone;
  bool qkv_bias = false;
  // Of attention's output projection.
  bool output_bias = false;
  bool mlp_bias = false;
  // q_proj has the rows of a gate behind those of each head (see Attention::has_gate).
  bool attention_gate = false;
  // Attention has sinks (see Attention::sinks).
  bool sinks = false;
  // The checkpoint has one qkv_proj.
  bool fused_qkv = false;
  // The checkpoint has one gate_up_proj.
  bool fused_gate_up = false;
  // The checkpoint is for a rotary embedding that pairs neighbouring elements. The rows of q and k
  // are reordered when they are read, so that kernels always pair the halves of a head.
  bool turns_neighbours = false;
  NormNames norms = {};
  DeltaOptions delta = {};
  // Added to the weights of all norms: 1 for Gemma.
  float norm_offset = 0;
  float embedding_scale = 1;
  // Queries are divided by its square root; 0 = head_dim.
  double query_scalar = 0;
  // Which layers have the config's sliding window: none, all, or those that the config lists.
  enum class Windows { kNone, kAllLayers, kListedLayers } windows = Windows::kNone;
  // Of a mixture of experts.
  std::optional<ExpertOptions> experts = {};
  // The base of the rotary embedding in layers with a window, which is not scaled there; none = as
  // in the other layers.
  std::optional<double> window_rope_theta = {};
};

// The window of layer i; 0 = none.
int window_of_layer(const ModelConfig& config, const DecoderOptions& options, int i);

// Throws what make_model throws. With mixtures of experts, which are in the layers that the config
// says, also Error(kCorruptData) if the config has no number of experts.
std::unique_ptr<Model> make_decoder(const ModelContext& context, const DecoderOptions& options);

}  // namespace nanovllm
