// gpt-oss (arXiv 2508.10925): a mixture of experts with biases everywhere, attention sinks, windows
// in every second layer and an activation of its own.
#include "models/families.h"

namespace nanovllm {
namespace {

void assume_gpt_oss(ModelConfig& config) {
  config.attention_bias = true;
  config.experts.renormalise = true;
}

void read_gpt_oss(const JsonFields&, ModelConfig& config) {
  config.sliding_layers = layers_but_every(2, config.num_hidden_layers);
}

void read_gguf_gpt_oss(const GgufFields&, ModelConfig& config) {
  config.sliding_layers = layers_but_every(2, config.num_hidden_layers);
  config.rope_scaling.truncate = false;
}

DecoderOptions gpt_oss_options(const ModelConfig& config) {
  return {.qkv_bias = config.attention_bias,
          .output_bias = config.attention_bias,
          .sinks = true,
          .windows = DecoderOptions::Windows::kListedLayers,
          .experts = ExpertOptions{.router = "router",
                                   .alternates = true,
                                   .has_biases = true,
                                   .activation = Activation::kClampedSwiglu}};
}

}  // namespace

constinit const Family kGptOss = {
    .model = {"GptOssForCausalLM", "gpt-oss", "gpt-oss", "openai_gptoss", "openai"},
    .model_type = "gpt_oss",
    .defaults = assume_gpt_oss,
    .read = read_gpt_oss,
    .read_gguf = read_gguf_gpt_oss,
    .options = gpt_oss_options};

}  // namespace nanovllm
