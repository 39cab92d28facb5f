// OLMo 2 (arXiv 2501.00656) and OLMo 3 (arXiv 2512.13961): norms after attention and MLP instead
// of before them, and queries and keys normalised over all heads together. OLMo 3 has windows in
// three of four layers, and stretches the rotation in the others only.
#include "models/decoder.h"
#include "models/families.h"

namespace nanovllm {
namespace {

DecoderOptions olmo(const ModelContext& context) {
  const bool has_bias = context.config.attention_bias;
  return {.qk_norm = QkNorm::kAllHeads,
          .qkv_bias = has_bias,
          .output_bias = has_bias,
          .norms = {.before_attention = nullptr,
                    .after_attention = "post_attention_layernorm",
                    .before_mlp = nullptr,
                    .after_mlp = "post_feedforward_layernorm"}};
}

}  // namespace

std::unique_ptr<Model> make_olmo2(const ModelContext& context) {
  return make_decoder(context, olmo(context));
}

std::unique_ptr<Model> make_olmo3(const ModelContext& context) {
  DecoderOptions options = olmo(context);
  options.windows = DecoderOptions::Windows::kListedLayers;
  options.window_rope_theta = context.config.window_rope_theta;
  return make_decoder(context, options);
}

}  // namespace nanovllm
