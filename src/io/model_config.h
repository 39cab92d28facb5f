// What a model is: what config.json and generation_config.json of a Hugging Face folder, or the
// metadata of a GGUF file, say of it, checked and in one layout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "io/gguf_names.h"
#include "io/quantization_config.h"
#include "nanovllm/sampling_params.h"

namespace nanovllm {

// Llama-3's change of the rotary frequencies (rope_type "llama3"), linear or YaRN scaling; kind
// "default" = none. Kinds that no model supports are kept as they are, for the model to refuse.
struct RopeScaling {
  std::string kind = "default";  // default | linear | llama3 | yarn | ...
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  // llama3, yarn; max_position_embeddings if not given.
  int original_max_position_embeddings = 0;
  // yarn; 0 = derived from `factor`.
  double attention_factor = 0;
  // yarn
  double beta_fast = 32;
  double beta_slow = 1;
  // yarn: the ramp begins and ends at whole dimensions.
  bool truncate = true;
  // [rotated() / 2] or empty: each frequency is also divided by its number. The second list is for
  // contexts longer than original_max_position_embeddings.
  std::vector<double> divisors, long_divisors;
};

// Of a model with mixtures of experts.
struct ExpertsConfig {
  // Experts in a layer; 0 = the model has none.
  int num = 0;
  // Experts that a token goes to.
  int num_active = 0;
  // Of one expert.
  int width = 0;
  // Of the shared experts, which every token goes through, together; 0 = none.
  int shared_width = 0;
  // Whether the weights of the chosen experts are divided by their sum, and their factor.
  bool renormalise = false;
  double scale = 1;
  int num_groups = 1, num_active_groups = 1;
  // Layers at the beginning that have none.
  int num_dense_layers = 0;
  // Which layers have experts; the others have one MLP.
  std::vector<bool> layers;
};

// Of a model with recurrent layers (GatedDelta).
struct RecurrentConfig {
  // Which layers are recurrent; empty = none.
  std::vector<bool> layers = {};
  int num_key_heads = 0;
  int num_value_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  int conv_width = 0;
  // The checkpoint has value head h beside key head h % num_key_heads, and the factors of decay
  // themselves, not the logarithms of what they are below 0: GGUF.
  bool key_heads_take_turns = false;
  bool has_decay = false;
  float beta_scale = 1;

  bool has_layer(int i) const { return !layers.empty() && layers[i]; }
};

// Bounds far beyond any model, close enough that no product of two sizes overflows 64 bits.
inline constexpr int64_t kMaxSize = 1 << 28;
inline constexpr int64_t kMaxLayers = 10'000;

struct ModelConfig {
  // The folder, or the GGUF file.
  std::string model_dir;
  // Of config.json, or of the GGUF file; for messages.
  std::string config_path;
  // As in config.json: "Qwen3ForCausalLM", "qwen3".
  std::string architecture;
  std::string model_type;
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_hidden_layers = 0;
  int num_attention_heads = 0;
  int num_key_value_heads = 0;
  int head_dim = 0;
  int max_position_embeddings = 0;
  // What stretches the rotation is in max_position_embeddings already.
  bool positions_are_stretched = false;
  float rms_norm_eps = 1e-6f;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  // rope_theta of layers with a window, where rope_scaling does not apply; 0 = as in the others.
  double window_rope_theta = 0;
  // Only so many elements at the beginning of a head are rotated; 0 = all.
  int rotary_dim = 0;
  // Layers without rotation; empty = none.
  std::vector<bool> unrotated_layers;
  std::string hidden_act = "silu";
  bool tie_word_embeddings = false;
  // Biases on q, k, v (and o, if the family has it there).
  bool attention_bias = false;
  bool mlp_bias = false;
  // A norm of each head, in families that may have it or not.
  bool qk_norm = false;
  ExpertsConfig experts;
  RecurrentConfig recurrent;
  // Layers after the others that predict further tokens; they are not loaded.
  int num_prediction_layers = 0;
  // Queries are divided by its square root; 0 = head_dim.
  double query_scalar = 0;
  // Added to the weights of norms.
  float norm_offset = 0;
  // Factors of embeddings, of what attention and MLP add to the residual, and of logits.
  float embedding_scale = 1;
  float residual_scale = 1;
  float logit_scale = 1;
  // Of attention scores and of logits; 0 = none.
  float attention_soft_cap = 0;
  float final_soft_cap = 0;
  // Tokens; 0 = none.
  int sliding_window = 0;
  // Which layers the window is for; empty = all. From layer_types or max_window_layers.
  std::vector<bool> sliding_layers;
  // The type that the checkpoint says it has.
  DType dtype = DType::kBFloat16;
  // Of a Hugging Face folder.
  std::optional<QuantizationConfig> quantization;
  // Of a GGUF file.
  GgufLayout gguf;
  // config.json's, then generation_config.json's, without repeats.
  std::vector<int32_t> eos_token_ids;
  // generation_config.json's over our defaults.
  SamplingParams default_sampling_params;
  // Keys of config.json that nothing here knows and that may change what the model computes.
  std::vector<std::string> unknown_keys;
  // The file that sets the default temperature, or the key in a GGUF file; empty = our default.
  std::string default_temperature_source;

  // Elements of a head that are rotated.
  int rotated() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
  // Positions that the model was made for: max_position_embeddings, stretched by linear or YaRN
  // scaling.
  int max_context_length() const;
};

// A sentence about numbers that do not fit together; empty if all do.
std::string problem_of(const ExpertsConfig& experts);
// true for all layers but every nth.
std::vector<bool> layers_but_every(int64_t nth, int num_layers);

}  // namespace nanovllm
