// Qwen2 and Qwen2.5 (arXiv 2407.10671): always biases on q, k and v, never elsewhere, whatever
// config.json says; Qwen2-MoE: a mixture of experts with a shared expert that has a gate.
#include "models/families.h"

namespace nanovllm {
namespace {

constexpr ConfigRules kQwen2Rules = {.windows = ConfigRules::Windows::kIfAskedFor,
                                     .first_window_layer = 28};

void assume_qwen2_moe(ModelConfig& config) { config.attention_bias = true; }

DecoderOptions qwen2_options(const ModelConfig&) {
  return {.qkv_bias = true, .windows = DecoderOptions::Windows::kListedLayers};
}

DecoderOptions qwen2_moe_options(const ModelConfig& config) {
  return {.qkv_bias = config.attention_bias,
          .windows = DecoderOptions::Windows::kListedLayers,
          .experts = ExpertOptions{.has_shared_gate = true}};
}

}  // namespace

constinit const Family kQwen2 = {
    .model = {"Qwen2ForCausalLM", "Qwen2, Qwen2.5", "qwen2", "", "hermes"},
    .model_type = "qwen2",
    .rules = kQwen2Rules,
    .options = qwen2_options};

constinit const Family kQwen2Moe = {
    .model = {"Qwen2MoeForCausalLM", "Qwen2-MoE", "qwen2moe", "", "hermes"},
    .model_type = "qwen2_moe",
    .rules = kQwen2Rules,
    .defaults = assume_qwen2_moe,
    .options = qwen2_moe_options};

}  // namespace nanovllm
