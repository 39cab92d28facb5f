// What a model is: config.json and generation_config.json of a Hugging Face folder, or the metadata
// of a GGUF file, checked and in one layout.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
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
  int original_max_position_embeddings = 0;  // llama3, yarn; max_position_embeddings if not given
  double attention_factor = 0;               // yarn; 0 = derived
  double beta_fast = 32;                     // yarn
  double beta_slow = 1;                      // yarn
  bool truncate = true;                      // yarn: whole dimensions bound the ramp
  // [rotated() / 2], what frequencies are divided by besides, or none; the second one is for
  // contexts beyond original_max_position_embeddings.
  std::vector<double> divisors, long_divisors;
};

// Of a model with mixtures of experts.
struct ExpertsConfig {
  int num = 0;  // of a layer; 0 = the model has none
  int num_active = 0;
  int width = 0;             // of one
  int shared_width = 0;      // of those that every row goes through, together; 0 = none
  bool renormalise = false;  // the weights of the chosen ones
  double scale = 1;          // of the weights
  int num_groups = 1, num_active_groups = 1;
  std::vector<bool> layers;  // that have them; the others are dense
};

// Bounds far beyond any model, close enough that no product of two sizes overflows 64 bits.
inline constexpr int64_t kMaxSize = 1 << 28;
inline constexpr int64_t kMaxLayers = 10'000;

struct ModelConfig {
  std::string model_dir;     // or the GGUF file
  std::string config_path;   // of config.json, or the GGUF file
  std::string architecture;  // e.g. "Qwen3ForCausalLM"
  std::string model_type;    // e.g. "qwen3"
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_hidden_layers = 0;
  int num_attention_heads = 0;
  int num_key_value_heads = 0;
  int head_dim = 0;
  int max_position_embeddings = 0;
  float rms_norm_eps = 1e-6f;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  double window_rope_theta = 0;        // of layers with a window, unscaled; 0 = as the others
  int rotary_dim = 0;                  // the first elements of a head, which alone turn; 0 = all
  std::vector<bool> unrotated_layers;  // in which no head turns; empty = none
  std::string hidden_act = "silu";
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // biases on q, k, v (and o where the family has it there)
  bool mlp_bias = false;
  bool qk_norm = false;  // of each head, in families that may or may not have it
  ExpertsConfig experts;
  int num_prediction_layers = 0;  // of more tokens at once, behind the others; they are left out
  double query_scalar = 0;        // queries are divided by its root; 0 = head_dim
  float norm_offset = 0;          // what the weights of norms lack
  float embedding_scale = 1;      // that embeddings are multiplied by
  float residual_scale = 1;       // that what a block adds is multiplied by
  float logit_scale = 1;          // that logits are multiplied by
  float attention_soft_cap = 0;   // of scores; 0 = none
  float final_soft_cap = 0;       // of logits; 0 = none
  int sliding_window = 0;         // tokens; 0 = none
  // Which layers the window is for; empty = all. From layer_types or max_window_layers.
  std::vector<bool> sliding_layers;
  DType dtype = DType::kBFloat16;                  // what the checkpoint says it holds
  std::optional<QuantizationConfig> quantization;  // of a Hugging Face folder
  std::vector<int32_t>
      eos_token_ids;  // config.json's, then generation_config.json's, without repeats
  SamplingParams default_sampling_params;  // generation_config.json's over our defaults
  // Keys of config.json that may change what the model computes and that nothing here knows.
  std::vector<std::string> unknown_keys;
  std::string
      default_temperature_source;  // the file or the key of it that sets theirs; empty: our default

  int rotated() const { return rotary_dim > 0 ? rotary_dim : head_dim; }  // elements of a head
  // Positions the model was made for: max_position_embeddings, stretched by linear or YaRN scaling.
  int max_context_length() const;

  // Reads both layouts: top-level rope_theta/rope_scaling/torch_dtype, and rope_parameters/dtype of
  // transformers 5; rope_scaling goes before rope_parameters. Of a multimodal model it reads the
  // text part. Or the metadata of a GGUF file. A
  // size that config.json does not give is left 0: make_model refuses it, after the architecture.
  // Throws Error: kNotFound (folder or config.json), kCorruptData (bad JSON, field of the wrong
  // type or out of range), kUnsupported (an unknown dtype, a quantisation that can't be decoded).
  static ModelConfig load(const std::string& model);
};

// What transformers takes where a file is silent, which those of Gemma are of much; of all other
// architectures, nothing.
void assume_defaults(ModelConfig& config);
// What of the numbers does not fit together, as a sentence; or nothing.
std::string problem_of(const ExpertsConfig& experts);
// Whether a part of each head may turn, by model_type.
bool turns_parts(const ModelConfig& config);
// Windows in all layers but every nth.
std::vector<bool> layers_but_every(int64_t nth, int num_layers);

}  // namespace nanovllm
