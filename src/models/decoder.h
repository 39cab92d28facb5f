// The decoder that Llama and its descendants share: embedding, layers of attention and MLP with
// RMSNorm before each, a last norm and the head. A family says what it has besides.
#pragma once

#include <memory>
#include <optional>

#include "models/layers.h"
#include "models/model.h"

namespace nanovllm {

struct DecoderOptions {
  bool qk_norm = false;
  bool qkv_bias = false;
  bool output_bias = false;  // of attention's output projection
  bool mlp_bias = false;
  bool sinks = false;       // of attention
  bool post_norms = false;  // of what attention and MLP add to the residual, too
  float norm_offset = 0;    // added to the weights of all norms
  float embedding_scale = 1;
  double query_scalar = 0;  // queries are divided by its root; 0 = head_dim
  enum class Windows { kNone, kAllLayers, kListedLayers } windows = Windows::kNone;
  std::optional<ExpertOptions> experts = {};     // in the layers that the config says
  std::optional<double> window_rope_theta = {};  // of layers with a window, unscaled
};

// Throws Error as make_model does.
std::unique_ptr<Model> make_decoder(const ModelContext& context, const DecoderOptions& options);

}  // namespace nanovllm
