// GLM-4-0414 (github.com/THUDM/GLM-4): norms before and after attention and MLP, one matrix for
// gate and up, and a rotation that turns neighbours, and only those in the first half of a head.
// GLM-4.5 (arXiv 2508.06471): a mixture of experts whose scores are sigmoids and whose first layers
// are dense.
#include "models/families.h"

namespace nanovllm {
namespace {

void assume_glm4(ModelConfig& config) {
  config.rms_norm_eps = 1.5625e-7f;
  config.head_dim = 128;
  config.attention_bias = true;
}

void assume_glm4_moe(ModelConfig& config) {
  config.experts.renormalise = true;
  config.experts.num_dense_layers = 1;
}

// partial_rotary_factor may say another share.
void turn_half(const JsonFields&, ModelConfig& config) {
  config.rotary_dim = config.head_dim / 4 * 2;
}

DecoderOptions glm4_options(const ModelConfig& config) {
  return {.qkv_bias = config.attention_bias,
          .fused_gate_up = true,
          .turns_neighbours = true,
          .norms = {.before_attention = "input_layernorm",
                    .after_attention = "post_self_attn_layernorm",
                    .before_mlp = "post_attention_layernorm",
                    .after_mlp = "post_mlp_layernorm"}};
}

DecoderOptions glm4_moe_options(const ModelConfig& config) {
  return {
      .qk_norm = config.qk_norm ? QkNorm::kEachHead : QkNorm::kNone,
      .qkv_bias = config.attention_bias,
      .experts = ExpertOptions{
          .shared = "shared_experts", .has_correction = true, .score = Routing::Score::kSigmoid}};
}

}  // namespace

constinit const Family kGlm4 = {.model = {"Glm4ForCausalLM", "GLM-4", "glm4", "", ""},
                                .model_type = "glm4",
                                .rules = {.turns_parts = true},
                                .defaults = assume_glm4,
                                .read = turn_half,
                                .options = glm4_options};

constinit const Family kGlm4Moe = {
    .model = {"Glm4MoeForCausalLM", "GLM-4.5", "glm4moe", "glm45", "glm45"},
    .model_type = "glm4_moe",
    .rules = {.turns_parts = true},
    .defaults = assume_glm4_moe,
    .read = turn_half,
    .options = glm4_moe_options};

}  // namespace nanovllm
