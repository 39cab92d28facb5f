// GLM-4-0414 (github.com/THUDM/GLM-4): norms before and after attention and MLP, one matrix for
// gate and up, and a rotation that turns neighbours, and only those in the first half of a head.
#include "models/decoder.h"
#include "models/families.h"

namespace nanovllm {

std::unique_ptr<Model> make_glm4(const ModelContext& context) {
  return make_decoder(context, {.qkv_bias = context.config.attention_bias,
                                .fused_gate_up = true,
                                .turns_neighbours = true,
                                .norms = {.before_attention = "input_layernorm",
                                          .after_attention = "post_self_attn_layernorm",
                                          .before_mlp = "post_attention_layernorm",
                                          .after_mlp = "post_mlp_layernorm"}});
}

}  // namespace nanovllm
