// Gemma 2 (arXiv 2408.00118) and Gemma 3 (arXiv 2503.19786): norms before and after each block
// that multiply by 1 + weight, scaled embeddings, windows in most layers. Gemma 2 caps scores and
// logits; Gemma 3 normalises the heads of queries and keys instead and turns those of layers with
// a window by another base.
#include <cmath>

#include "models/decoder.h"
#include "models/families.h"

namespace nanovllm {
namespace {

DecoderOptions gemma(const ModelContext& context) {
  const ModelConfig& config = context.config;
  return {.qkv_bias = config.attention_bias,
          .output_bias = config.attention_bias,
          .norms = {.before_attention = "input_layernorm",
                    .after_attention = "post_attention_layernorm",
                    .before_mlp = "pre_feedforward_layernorm",
                    .after_mlp = "post_feedforward_layernorm"},
          .norm_offset = config.norm_offset,
          .embedding_scale = std::sqrt(static_cast<float>(config.hidden_size)),
          .query_scalar = config.query_scalar,
          .windows = DecoderOptions::Windows::kListedLayers};
}

}  // namespace

std::unique_ptr<Model> make_gemma2(const ModelContext& context) {
  return make_decoder(context, gemma(context));
}

std::unique_ptr<Model> make_gemma3(const ModelContext& context) {
  DecoderOptions options = gemma(context);
  options.qk_norm = QkNorm::kEachHead;
  options.window_rope_theta = context.config.window_rope_theta;
  return make_decoder(context, options);
}

}  // namespace nanovllm
