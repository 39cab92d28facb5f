// The decoder that Llama and its descendants share: embedding, layers of attention and MLP with
// RMSNorm before each, a last norm and the head. A family says how it differs.
#pragma once

#include <memory>
#include <optional>

#include "models/layers.h"
#include "models/model.h"

namespace nanovllm {

// What the checkpoint calls the norms of a layer; null: there is none.
struct NormNames {
  const char* before_attention = "input_layernorm";
  const char* after_attention = nullptr;
  const char* before_mlp = "post_attention_layernorm";
  const char* after_mlp = nullptr;
};

struct DecoderOptions {
  QkNorm qk_norm = QkNorm::kNone;
  bool qkv_bias = false;
  bool output_bias = false;  // of attention's output projection
  bool mlp_bias = false;
  bool sinks = false;             // of attention
  bool fused_qkv = false;         // one qkv_proj
  bool fused_gate_up = false;     // one gate_up_proj
  bool turns_neighbours = false;  // by the rotation, not the halves of a head
  NormNames norms = {};
  float norm_offset = 0;  // added to the weights of all norms
  float embedding_scale = 1;
  double query_scalar = 0;  // queries are divided by its root; 0 = head_dim
  enum class Windows { kNone, kAllLayers, kListedLayers } windows = Windows::kNone;
  std::optional<ExpertOptions> experts = {};     // in the layers that the config says
  std::optional<double> window_rope_theta = {};  // of layers with a window, unscaled
};

// Throws Error as make_model does.
std::unique_ptr<Model> make_decoder(const ModelContext& context, const DecoderOptions& options);
// With mixtures of experts in the layers that the config says.
std::unique_ptr<Model> make_decoder(const ModelContext& context, DecoderOptions options,
                                    const ExpertOptions& experts);

}  // namespace nanovllm
