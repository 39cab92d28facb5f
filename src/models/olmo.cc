// OLMo 2 (arXiv 2501.00656) and OLMo 3 (arXiv 2512.13961): norms after attention and MLP instead
// of before them, and queries and keys normalised over all heads together. OLMo 3 has windows in
// three of four layers, and stretches the rotation in the others only. OLMoE (arXiv 2409.02060): a
// mixture of experts with a Llama's norms. OLMo hybrid: recurrent layers (the gated delta rule,
// whose keys may be taken out twice over) with norms before their blocks, to one of attention as in
// OLMo 2, which turns nothing where no base is given. In GGUF an OLMo 3 is an OLMo 2 with a window.
#include <nlohmann/json.hpp>

#include "io/recurrent_config.h"
#include "models/families.h"

namespace nanovllm {
namespace {

bool is_olmo3(const GgufFields& fields) {
  return fields.size("attention.sliding_window", INT32_MAX, 0).value_or(0) > 0;
}

void assume_olmo(ModelConfig& config) { config.rms_norm_eps = 1e-5f; }

void assume_olmo3(ModelConfig& config) {
  assume_olmo(config);
  config.rope_theta = 5e5;
  config.sliding_window = 4096;
}

void read_olmo3(const JsonFields&, ModelConfig& config) {
  config.sliding_layers = layers_but_every(4, config.num_hidden_layers);
}

void read_gguf_olmo3(const GgufFields& fields, ModelConfig& config) {
  config.rope_theta = 1e4;  // llama.cpp's
  config.sliding_layers = layers_but_every(4, config.num_hidden_layers);
  config.window_rope_theta =
      fields.number("rope.freq_base_swa", 1, 1e18)
          .value_or(fields.number("rope.freq_base", 1, 1e18).value_or(config.rope_theta));
  const char* pattern = "attention.sliding_window_pattern";
  if (!fields.file().has(fields.key(pattern))) return;
  const auto listed = fields.booleans(pattern).value_or(std::vector<bool>());
  if (std::ssize(listed) != config.num_hidden_layers) {
    fields.file().fail(fields.key(pattern), "true or false for every layer");
  }
  config.sliding_layers = listed;
}

// Sizes follow those of attention, and a factor of beta is kept where the config has one for it.
void read_olmo_hybrid(const JsonFields& fields, ModelConfig& config) {
  RecurrentConfig& sizes = config.recurrent;
  sizes.num_key_heads = sizes.num_value_heads = config.num_attention_heads;
  if (config.num_attention_heads > 0) {
    sizes.key_dim = static_cast<int>(0.75 * config.hidden_size / config.num_attention_heads);
  }
  assign_if(sizes.key_dim, fields.integer("linear_key_head_dim", 1, 1 << 16));
  sizes.value_dim = 2 * sizes.key_dim;
  sizes.conv_width = 4;
  read_recurrent(fields, config);
  sizes.beta_scale = fields.boolean("linear_allow_neg_eigval").value_or(true) ? 2 : 1;
  // Of how weights begin.
  for (const char* harmless : {"linear_a_log_min", "linear_a_log_max", "linear_dt_init_floor",
                               "linear_dt_min", "linear_dt_max"}) {
    fields.find(harmless);
  }
  const Json* rope = fields.find("rope_parameters");
  const bool turns = rope != nullptr && find_member(*rope, "rope_theta") != nullptr;
  if (!turns) config.unrotated_layers.assign(config.num_hidden_layers, true);
}

DecoderOptions olmo2_options(const ModelConfig& config) {
  return {.qk_norm = QkNorm::kAllHeads,
          .qkv_bias = config.attention_bias,
          .output_bias = config.attention_bias,
          .norms = {.before_attention = nullptr,
                    .after_attention = "post_attention_layernorm",
                    .before_mlp = nullptr,
                    .after_mlp = "post_feedforward_layernorm"}};
}

DecoderOptions olmo3_options(const ModelConfig& config) {
  DecoderOptions options = olmo2_options(config);
  options.windows = DecoderOptions::Windows::kListedLayers;
  options.window_rope_theta = config.window_rope_theta;
  return options;
}

DecoderOptions olmo_hybrid_options(const ModelConfig& config) {
  DecoderOptions options = olmo2_options(config);
  options.delta = {.names = DeltaOptions::Names::kApart,
                   .beta_scale = config.recurrent.beta_scale,
                   .eps = 1e-5f,
                   .norms = NormNames{},
                   .older_norms = NormNames{.before_attention = "attention_layer_norm",
                                            .before_mlp = "feedforward_layer_norm"}};
  return options;
}

DecoderOptions olmoe_options(const ModelConfig& config) {
  return {.qk_norm = QkNorm::kAllHeads,
          .qkv_bias = config.attention_bias,
          .output_bias = config.attention_bias,
          .experts = ExpertOptions{}};
}

}  // namespace

constinit const Family kOlmo2 = {.model = {"Olmo2ForCausalLM", "OLMo 2", "olmo2", "", ""},
                                 .model_type = "olmo2",
                                 .gguf_has_post_norms = true,
                                 .defaults = assume_olmo,
                                 .options = olmo2_options};

constinit const Family kOlmo3 = {
    .model = {"Olmo3ForCausalLM", "OLMo 3", "olmo2", "olmo3", "olmo3"},
    .model_type = "olmo3",
    .owns = is_olmo3,
    .gguf_has_post_norms = true,
    .rules = {.windows_turn_apart = true, .windows = ConfigRules::Windows::kAlways},
    .defaults = assume_olmo3,
    .read = read_olmo3,
    .read_gguf = read_gguf_olmo3,
    .options = olmo3_options};

constinit const Family kOlmoHybrid = {.model = {"OlmoHybridForCausalLM", "OLMo hybrid", "", "", ""},
                                      .model_type = "olmo_hybrid",
                                      .read = read_olmo_hybrid,
                                      .options = olmo_hybrid_options};

constinit const Family kOlmoe = {.model = {"OlmoeForCausalLM", "OLMoE", "olmoe", "", ""},
                                 .model_type = "olmoe",
                                 .defaults = assume_olmo,
                                 .options = olmoe_options};

}  // namespace nanovllm
