// SmolLM3 (huggingface.co/blog/smollm3): a Llama whose heads do not turn in every fourth layer. The
// window, if it has one, is in those layers.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/families.h"

namespace nanovllm {
namespace {

void assume_smollm3(ModelConfig& config) {
  config.rope_theta = 2e6;
  config.tie_word_embeddings = true;
}

void do_not_turn_every(int64_t nth, ModelConfig& config) {
  config.unrotated_layers = layers_but_every(nth, config.num_hidden_layers);
  config.unrotated_layers.flip();
}

// Which layers turn nothing: a list of 0 for these and 1 for others, or every nth.
void read_smollm3(const JsonFields& fields, ModelConfig& config) {
  if (const Json* listed = fields.find("no_rope_layers")) {
    const bool fits = listed->is_array() &&
                      listed->size() == static_cast<size_t>(config.num_hidden_layers) &&
                      std::ranges::all_of(*listed, [](const Json& v) {
                        return v.is_number_unsigned() && v.get<uint64_t>() <= 1;
                      });
    if (!fits) fields.fail("no_rope_layers", "0 or 1 for every layer");
    for (const Json& turns : *listed) config.unrotated_layers.push_back(turns == 0);
  } else {
    do_not_turn_every(fields.integer("no_rope_layer_interval", 1, kMaxLayers).value_or(4), config);
  }
  config.sliding_layers = config.unrotated_layers;
}

// llama.cpp's files do not say.
void read_gguf_smollm3(const GgufFields&, ModelConfig& config) { do_not_turn_every(4, config); }

DecoderOptions smollm3_options(const ModelConfig& config) {
  return {.qkv_bias = config.attention_bias,
          .output_bias = config.attention_bias,
          .mlp_bias = config.mlp_bias,
          .windows = DecoderOptions::Windows::kListedLayers};
}

}  // namespace

constinit const Family kSmolLm3 = {
    .model = {"SmolLM3ForCausalLM", "SmolLM3", "smollm3", "qwen3", "hermes"},
    .model_type = "smollm3",
    .gguf_turns_neighbours = true,
    .rules = {.windows = ConfigRules::Windows::kIfAskedFor},
    .defaults = assume_smollm3,
    .read = read_smollm3,
    .read_gguf = read_gguf_smollm3,
    .options = smollm3_options};

}  // namespace nanovllm
