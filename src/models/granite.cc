// Granite 3 (ibm.com/granite): a Llama with factors for embeddings, scores, what each block adds,
// and logits.
#include <cmath>

#include "models/families.h"

namespace nanovllm {
namespace {

void read_granite(const JsonFields& fields, ModelConfig& config) {
  const auto factor = [&](const char* key) {
    return fields.number(key, kAboveZero, 1e6).value_or(1);
  };
  config.embedding_scale = static_cast<float>(factor("embedding_multiplier"));
  config.residual_scale = static_cast<float>(factor("residual_multiplier"));
  config.logit_scale = static_cast<float>(1 / factor("logits_scaling"));
  config.query_scalar = std::pow(factor("attention_multiplier"), -2);
}

void read_gguf_granite(const GgufFields& fields, ModelConfig& config) {
  const auto factor = [&](const char* name) {
    return fields.number(name, kAboveZero, 1e6).value_or(1);
  };
  config.embedding_scale = static_cast<float>(factor("embedding_scale"));
  config.residual_scale = static_cast<float>(factor("residual_scale"));
  config.logit_scale = static_cast<float>(1 / factor("logit_scale"));
  const auto scale = fields.number("attention.scale", kAboveZero, 1e6);
  config.query_scalar = scale ? 1 / (*scale * *scale) : 0;
}

// Those that multiply what blocks add, and logits, the decoder takes from the config.
DecoderOptions granite_options(const ModelConfig& config) {
  return {.qkv_bias = config.attention_bias,
          .output_bias = config.attention_bias,
          .mlp_bias = config.mlp_bias,
          .embedding_scale = config.embedding_scale,
          .query_scalar = config.query_scalar};
}

}  // namespace

constinit const Family kGranite = {
    .model = {"GraniteForCausalLM", "Granite 3", "granite", "granite", "granite"},
    .model_type = "granite",
    .gguf_turns_neighbours = true,
    .read = read_granite,
    .read_gguf = read_gguf_granite,
    .options = granite_options};

}  // namespace nanovllm
