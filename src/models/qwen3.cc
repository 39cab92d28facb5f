// Qwen3 (arXiv 2505.09388): query and key heads are normalised before they are turned, and
// head_dim is independent of hidden_size. Qwen3-MoE: a mixture of experts, with its window, if any,
// in all layers.
#include "models/families.h"

namespace nanovllm {
namespace {

void assume_qwen3(ModelConfig& config) { config.head_dim = 128; }

void read_qwen3_moe(const JsonFields&, ModelConfig& config) {
  config.sliding_layers.assign(static_cast<size_t>(config.num_hidden_layers), true);
}

// transformers assumes otherwise.
void read_gguf_qwen3_moe(const GgufFields& fields, ModelConfig& config) {
  config.experts.renormalise = fields.boolean("expert_weights_norm").value_or(true);
}

DecoderOptions qwen3_options(const ModelConfig& config) {
  return {.qk_norm = QkNorm::kEachHead,
          .qkv_bias = config.attention_bias,
          .output_bias = config.attention_bias,
          .windows = DecoderOptions::Windows::kListedLayers};
}

DecoderOptions qwen3_moe_options(const ModelConfig& config) {
  DecoderOptions options = qwen3_options(config);
  options.windows = DecoderOptions::Windows::kAllLayers;
  options.experts = ExpertOptions();
  return options;
}

}  // namespace

constinit const Family kQwen3 = {
    .model = {"Qwen3ForCausalLM", "Qwen3", "qwen3", "qwen3", "hermes"},
    .model_type = "qwen3",
    .rules = {.windows = ConfigRules::Windows::kIfAskedFor, .first_window_layer = 28},
    .defaults = assume_qwen3,
    .options = qwen3_options};

constinit const Family kQwen3Moe = {
    .model = {"Qwen3MoeForCausalLM", "Qwen3-MoE", "qwen3moe", "qwen3", "hermes"},
    .model_type = "qwen3_moe",
    .rules = {.windows = ConfigRules::Windows::kIfAskedFor},
    .read = read_qwen3_moe,
    .read_gguf = read_gguf_qwen3_moe,
    .options = qwen3_moe_options};

}  // namespace nanovllm
