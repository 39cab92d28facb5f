// Gemma 2 (arXiv 2408.00118) and Gemma 3 (arXiv 2503.19786): norms before and after each block
// that multiply by 1 + weight, scaled embeddings, windows in most layers. Gemma 2 caps scores and
// logits; Gemma 3 normalises the heads of queries and keys instead and turns those of layers with
// a window by another base. Files of both leave out much.
#include <cmath>

#include "base/check.h"
#include "models/families.h"

namespace nanovllm {
namespace {

constexpr const char* kGemmaActivation = "gelu_pytorch_tanh";
constexpr int kGemma2Pattern = 2, kGemma3Pattern = 6;  // every nth layer sees everything

void assume_gemma(ModelConfig& config) {
  config.hidden_size = 2304;
  config.intermediate_size = 9216;
  config.num_hidden_layers = 26;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.head_dim = 256;
  config.hidden_act = kGemmaActivation;
  config.tie_word_embeddings = true;
  config.query_scalar = 256;
  config.norm_offset = 1;
  config.sliding_window = 4096;
}

void assume_gemma2(ModelConfig& config) {
  assume_gemma(config);
  config.vocab_size = 256'000;
  config.max_position_embeddings = 8192;
  config.attention_soft_cap = 50;
  config.final_soft_cap = 30;
}

void assume_gemma3(ModelConfig& config) {
  assume_gemma(config);
  config.vocab_size = 262'208;
  config.max_position_embeddings = 131'072;
  config.positions_are_stretched = true;
  config.rope_theta = 1e6;
  config.window_rope_theta = 1e4;
}

void read_gemma(const JsonFields& fields, ModelConfig& config) {
  config.hidden_act = fields.string("hidden_activation").value_or(kGemmaActivation);
  assign_if(config.query_scalar, fields.number("query_pre_attn_scalar", kAboveZero, kMaxSize));
  assign_if(config.window_rope_theta, fields.number("rope_local_base_freq", 1, 1e18));
  const auto read_cap = [&](float& cap, const char* key) {
    if (fields.has(key)) cap = static_cast<float>(fields.number(key, kAboveZero, 1e6).value_or(0));
  };
  read_cap(config.attention_soft_cap, "attn_logit_softcapping");
  read_cap(config.final_soft_cap, "final_logit_softcapping");
  if (fields.has("sliding_window") && !fields.find("sliding_window")) {
    throw_error(ErrorCode::kCorruptData,
                "{}: \"sliding_window\" is null, expected a number of tokens", fields.where());
  }
  if (!fields.boolean("use_bidirectional_attention").value_or(false)) return;
  throw_error(ErrorCode::kUnsupported,
              "{}: use_bidirectional_attention is true, which is not supported; expected a model "
              "that generates text",
              fields.where());
}

void read_gemma2(const JsonFields& fields, ModelConfig& config) {
  read_gemma(fields, config);
  config.sliding_layers = layers_but_every(kGemma2Pattern, config.num_hidden_layers);
}

void read_gemma3(const JsonFields& fields, ModelConfig& config) {
  read_gemma(fields, config);
  config.sliding_layers = layers_but_every(
      fields.integer("sliding_window_pattern", 1, INT32_MAX).value_or(kGemma3Pattern),
      config.num_hidden_layers);
}

// Files of Gemma leave out what llama.cpp knows by the number of layers.
void read_gguf_gemma(const GgufFields& fields, ModelConfig& config, int layers_of_27b,
                     int pattern) {
  const int layers = config.num_hidden_layers;
  config.norm_offset = 0;  // the weights of norms hold 1 + w
  config.query_scalar = config.head_dim;
  if (layers == layers_of_27b) {
    config.query_scalar = 1.0 * config.hidden_size / config.num_attention_heads;
  }
  if (const double scale = fields.number("attention.scale", 0, 1e6).value_or(0); scale > 0) {
    config.query_scalar = 1 / (scale * scale);
  }
  const auto read_cap = [&](float& cap, const char* name) {
    cap = static_cast<float>(fields.number(name, 0, 1e6).value_or(cap));
  };
  read_cap(config.attention_soft_cap, "attn_logit_softcapping");
  read_cap(config.final_soft_cap, "final_logit_softcapping");
  config.sliding_layers = layers_but_every(
      fields.size("attention.sliding_window_pattern", INT32_MAX).value_or(pattern), layers);
}

void read_gguf_gemma2(const GgufFields& fields, ModelConfig& config) {
  read_gguf_gemma(fields, config, 46, kGemma2Pattern);
}

void read_gguf_gemma3(const GgufFields& fields, ModelConfig& config) {
  read_gguf_gemma(fields, config, 62, kGemma3Pattern);
  assign_if(config.window_rope_theta, fields.number("rope.freq_base_swa", 1, 1e18));
}

DecoderOptions gemma2_options(const ModelConfig& config) {
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

DecoderOptions gemma3_options(const ModelConfig& config) {
  DecoderOptions options = gemma2_options(config);
  options.qk_norm = QkNorm::kEachHead;
  options.window_rope_theta = config.window_rope_theta;
  return options;
}

constexpr Family gemma3(const SupportedModel& model, bool has_text_config) {
  return {.model = model,
          .model_type = "gemma3_text",
          .gguf_has_post_norms = true,
          .rules = {.has_text_config = has_text_config, .windows = ConfigRules::Windows::kAlways},
          .defaults = assume_gemma3,
          .read = read_gemma3,
          .read_gguf = read_gguf_gemma3,
          .options = gemma3_options};
}

}  // namespace

constinit const Family kGemma2 = {.model = {"Gemma2ForCausalLM", "Gemma 2", "gemma2", "", ""},
                                  .model_type = "gemma2",
                                  .gguf_has_post_norms = true,
                                  .rules = {.windows = ConfigRules::Windows::kAlways},
                                  .defaults = assume_gemma2,
                                  .read = read_gemma2,
                                  .read_gguf = read_gguf_gemma2,
                                  .options = gemma2_options};

constinit const Family kGemma3 = gemma3({"Gemma3ForCausalLM", "Gemma 3", "gemma3", "", ""}, false);
constinit const Family kGemma3WithTowers =
    gemma3({"Gemma3ForConditionalGeneration", "Gemma 3, the text part", "", "", ""}, true);

}  // namespace nanovllm
