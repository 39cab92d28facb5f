#include "io/model_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "io/config_keys.h"
#include "io/file.h"
#include "io/gguf_model.h"
#include "io/json.h"
#include "io/rope_config.h"

namespace nanovllm {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr size_t kMaxEosTokens = 1024;
constexpr double kInfinity = std::numeric_limits<double>::max();

DType parse_dtype(const std::string& name, const std::string& where) {
  if (name == "bfloat16") return DType::kBFloat16;
  if (name == "float16") return DType::kFloat16;
  if (name == "float32") return DType::kFloat32;
  throw_error(ErrorCode::kUnsupported,
              "{}: dtype {} can't be loaded, only bfloat16, float16 and float32", where,
              printable(name));
}

bool is_gemma2(const ModelConfig& config) { return config.architecture.starts_with("Gemma2For"); }
bool is_gemma3(const ModelConfig& config) { return config.architecture.starts_with("Gemma3For"); }
bool is_gemma(const ModelConfig& config) { return is_gemma2(config) || is_gemma3(config); }

// What only a Granite has.
void read_granite(const JsonFields& fields, ModelConfig& config) {
  const auto factor = [&](const char* key) {
    return fields.number(key, kAboveZero, 1e6).value_or(1);
  };
  config.embedding_scale = static_cast<float>(factor("embedding_multiplier"));
  config.residual_scale = static_cast<float>(factor("residual_multiplier"));
  config.logit_scale = static_cast<float>(1 / factor("logits_scaling"));
  config.query_scalar = std::pow(factor("attention_multiplier"), -2);
}

// Which layers of a SmolLM3 turn nothing: a list of 0 for these and 1 for others, or every nth.
void read_unrotated_layers(const JsonFields& fields, ModelConfig& config) {
  const Json* listed = fields.find("no_rope_layers");
  if (listed == nullptr) {
    const int64_t nth = fields.integer("no_rope_layer_interval", 1, kMaxLayers).value_or(4);
    config.unrotated_layers = layers_but_every(nth, config.num_hidden_layers);
    config.unrotated_layers.flip();
    return;
  }
  const bool fits =
      listed->is_array() && listed->size() == static_cast<size_t>(config.num_hidden_layers) &&
      std::ranges::all_of(
          *listed, [](const Json& v) { return v.is_number_unsigned() && v.get<uint64_t>() <= 1; });
  if (!fits) fields.fail("no_rope_layers", "0 or 1 for every layer");
  for (const Json& turns : *listed) config.unrotated_layers.push_back(turns == 0);
}

// What only a Gemma has.
void read_gemma(const JsonFields& fields, ModelConfig& config) {
  assign_if(config.hidden_act, fields.string("hidden_activation"));
  assign_if(config.query_scalar, fields.number("query_pre_attn_scalar", kAboveZero, kMaxSize));
  assign_if(config.window_rope_theta, fields.number("rope_local_base_freq", 1, 1e18));
  const auto read_cap = [&](float& cap, const char* key) {
    if (fields.has(key)) cap = static_cast<float>(fields.number(key, kAboveZero, 1e6).value_or(0));
  };
  read_cap(config.attention_soft_cap, "attn_logit_softcapping");
  read_cap(config.final_soft_cap, "final_logit_softcapping");
  if (!fields.boolean("use_bidirectional_attention").value_or(false)) return;
  throw_error(ErrorCode::kUnsupported,
              "{}: use_bidirectional_attention is true, which is not supported; expected a model "
              "that generates text",
              fields.where());
}

void read_sizes(const JsonFields& fields, ModelConfig& config) {
  assign_if(config.vocab_size, fields.integer("vocab_size", 1, kMaxSize));
  assign_if(config.hidden_size, fields.integer("hidden_size", 1, kMaxSize));
  assign_if(config.intermediate_size, fields.integer("intermediate_size", 1, kMaxSize));
  assign_if(config.num_hidden_layers, fields.integer("num_hidden_layers", 1, kMaxLayers));
  assign_if(config.num_attention_heads, fields.integer("num_attention_heads", 1, kMaxSize));
  if (!is_gemma(config)) config.num_key_value_heads = config.num_attention_heads;
  assign_if(config.num_key_value_heads, fields.integer("num_key_value_heads", 1, kMaxSize));
  if (config.model_type == "qwen3" || config.model_type == "glm4") {
    config.head_dim = 128;  // transformers' default, which is not hidden_size / heads
  } else if (config.num_attention_heads > 0 && !is_gemma(config)) {
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  assign_if(config.head_dim, fields.integer("head_dim", 1, 1 << 16));
  assign_if(config.max_position_embeddings,
            fields.integer("max_position_embeddings", 1, INT32_MAX));
  assign_if(config.rms_norm_eps, fields.number("rms_norm_eps", 0, 1));
  if (!is_gemma(config)) assign_if(config.hidden_act, fields.string("hidden_act"));
  assign_if(config.tie_word_embeddings, fields.boolean("tie_word_embeddings"));
  assign_if(config.attention_bias, fields.boolean("attention_bias"));
  assign_if(config.attention_bias, fields.boolean("qkv_bias"));
  assign_if(config.mlp_bias, fields.boolean("mlp_bias"));
}

// Where config.json is silent, transformers' defaults hold, which are those of all families but for
// numbers that any file gives.
void read_experts(const JsonFields& fields, ModelConfig& config) {
  ExpertsConfig& experts = config.experts;
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"})
    assign_if(experts.num, fields.integer(key, 1, kMaxExperts));
  if (experts.num == 0) return;
  const bool is_glm = config.model_type == "glm4_moe";
  experts.renormalise = is_glm || config.model_type == "mixtral" || config.model_type == "gpt_oss";
  assign_if(experts.num_active, fields.integer("num_experts_per_tok", 1, experts.num));
  assign_if(config.qk_norm, fields.boolean("use_qk_norm"));
  for (const char* key : {"num_nextn_predict_layers", "num_mtp_layers"})
    assign_if(config.num_prediction_layers, fields.integer(key, 0, kMaxLayers));
  experts.width = config.intermediate_size;
  assign_if(experts.width, fields.integer("moe_intermediate_size", 1, kMaxSize));
  assign_if(experts.shared_width, fields.integer("shared_expert_intermediate_size", 0, kMaxSize));
  if (const auto num = fields.integer("n_shared_experts", 0, kMaxSize / std::max(1, experts.width)))
    experts.shared_width = static_cast<int>(*num * experts.width);
  assign_if(experts.renormalise, fields.boolean("norm_topk_prob"));
  assign_if(experts.scale, fields.number("routed_scaling_factor", kAboveZero, 1e6));
  assign_if(experts.num_groups, fields.integer("n_group", 1, experts.num));
  assign_if(experts.num_active_groups, fields.integer("topk_group", 1, experts.num_groups));
  const int64_t dense = fields.integer("first_k_dense_replace", 0, kMaxLayers).value_or(is_glm);
  const int64_t step = fields.integer("decoder_sparse_step", 1, kMaxLayers).value_or(1);
  for (int i = 0; i < config.num_hidden_layers; ++i)
    experts.layers.push_back(i >= dense && (i + 1) % step == 0);
  if (const Json* listed = fields.find("mlp_only_layers")) {
    if (!listed->is_array()) fields.fail("mlp_only_layers", "a list of layers");
    for (const Json& layer : *listed) {
      if (!layer.is_number_unsigned()) fields.fail("mlp_only_layers", "a list of layers");
      const auto i = layer.get<uint64_t>();
      if (i < experts.layers.size()) experts.layers[i] = false;
    }
  }
  if (const std::string problem = problem_of(experts); !problem.empty())
    throw_error(ErrorCode::kCorruptData, "{}: {}", fields.where(), problem);
  for (const auto& [key, only] : {std::pair("swiglu_limit", 7.0), {"swiglu_alpha", 1.702}}) {
    if (fields.number(key, 0, 1e6).value_or(only) != only)
      fields.fail(key, fmt::format("{}", only));
  }
  if (fields.find("clip_qkv") == nullptr) return;
  throw_error(ErrorCode::kUnsupported, "{}: clip_qkv is not supported, only null", fields.where());
}

void read_sliding_window(const JsonFields& fields, ModelConfig& config) {
  // Where fields are absent, transformers' defaults hold: a Qwen has no window, or has it from
  // layer 28 on, a Gemma in all but every second or sixth layer, an OLMo 3 in all but every fourth,
  // a SmolLM3 in layers without rotation, if any; others have it in all layers, a Mistral of 4096
  // tokens.
  const bool is_qwen = config.model_type.rfind("qwen", 0) == 0;
  const bool is_smollm3 = config.model_type == "smollm3";
  const bool is_used = fields.boolean("use_sliding_window").value_or(!is_qwen && !is_smollm3);
  if (!is_gemma(config) && !is_used) return;
  if (config.model_type == "mistral" && !fields.has("sliding_window")) config.sliding_window = 4096;
  assign_if(config.sliding_window, fields.integer("sliding_window", 1, INT32_MAX));
  if (is_gemma(config) && fields.has("sliding_window") && !fields.find("sliding_window")) {
    throw_error(ErrorCode::kCorruptData,
                "{}: \"sliding_window\" is null, expected a number of tokens", fields.where());
  }
  if (config.sliding_window == 0) return;
  auto first = fields.integer("max_window_layers", 0, INT32_MAX);
  if (config.model_type == "qwen3_moe") first = 0;  // in all layers
  if (!first && is_qwen) first = 28;
  if (const Json* types = fields.find("layer_types")) {
    const bool fits = types->is_array() &&
                      types->size() == static_cast<size_t>(config.num_hidden_layers) &&
                      std::all_of(types->begin(), types->end(), [](const Json& type) {
                        return type == "full_attention" || type == "sliding_attention";
                      });
    if (!fits) {
      fields.fail("layer_types", "\"full_attention\" or \"sliding_attention\" for every layer");
    }
    for (const Json& type : *types) config.sliding_layers.push_back(type == "sliding_attention");
  } else if (is_gemma(config)) {
    const auto listed = fields.integer("sliding_window_pattern", 1, INT32_MAX);
    const int64_t pattern = is_gemma2(config) ? 2 : listed.value_or(6);
    config.sliding_layers = layers_but_every(pattern, config.num_hidden_layers);
  } else if (config.model_type == "gpt_oss") {
    config.sliding_layers = layers_but_every(2, config.num_hidden_layers);
  } else if (config.model_type == "olmo3") {
    config.sliding_layers = layers_but_every(4, config.num_hidden_layers);
  } else if (is_smollm3) {
    config.sliding_layers = config.unrotated_layers;
  } else if (first) {
    for (int i = 0; i < config.num_hidden_layers; ++i) config.sliding_layers.push_back(i >= *first);
  }
}

// One id or a list of them; negative ids stand for "none".
void add_token_ids(const JsonFields& fields, const char* key, std::vector<int32_t>& ids) {
  const Json* value = fields.find(key);
  if (value == nullptr) return;
  const auto add = [&](const Json& id) {
    const bool fits = id.is_number_integer() &&
                      (!id.is_number_unsigned() || id.get<uint64_t>() <= INT32_MAX) &&
                      id.get<int64_t>() >= INT32_MIN;
    if (!fits) fields.fail(key, "a token id or a list of token ids");
    const auto token = id.get<int32_t>();
    if (token >= 0 && std::find(ids.begin(), ids.end(), token) == ids.end()) ids.push_back(token);
  };
  if (value->is_array()) {
    if (value->size() > kMaxEosTokens) {
      fields.fail(key, fmt::format("a token id or a list of at most {} token ids", kMaxEosTokens));
    }
    std::for_each(value->begin(), value->end(), add);
  } else {
    add(*value);
  }
}

void read_generation_config(const std::string& path, ModelConfig& config) {
  const Json document = parse_json(read_text_file(path, kMaxConfigBytes), path);
  const JsonFields fields(document, path);
  add_token_ids(fields, "eos_token_id", config.eos_token_ids);
  SamplingParams& params = config.default_sampling_params;
  if (const auto temperature = fields.number("temperature", 0, kInfinity)) {
    params.temperature = *temperature;
    config.default_temperature_source = std::filesystem::path(path).filename();
  }
  assign_if(params.top_k, fields.integer("top_k", -1, INT32_MAX));
  assign_if(params.top_p, fields.number("top_p", 0, 1));
  if (params.top_p == 0) fields.fail("top_p", "a number above 0 and up to 1");
  assign_if(params.min_p, fields.number("min_p", 0, 1));
  assign_if(params.repetition_penalty, fields.number("repetition_penalty", 0, kInfinity));
  if (params.repetition_penalty == 0) fields.fail("repetition_penalty", "a number above 0");
  assign_if(params.max_tokens, fields.integer("max_new_tokens", 1, INT32_MAX));
}

// Of the config of a multimodal model, the text_config with what the whole model says of itself.
void keep_text_part(Json& document) {
  const Json names = {"Gemma3ForConditionalGeneration"};
  if (!document.is_object() || document.value("architectures", Json()) != names) return;
  const auto text = document.find("text_config");
  if (text == document.end() || !text->is_object()) return;
  Json part = std::move(*text);
  for (const char* key : {"architectures", "dtype", "torch_dtype", "quantization_config",
                          "eos_token_id", "tie_word_embeddings"}) {
    const auto found = document.find(key);
    if (found != document.end() && !found->is_null()) part[key] = *found;
  }
  document = std::move(part);
}

}  // namespace

bool turns_parts(const ModelConfig& config) {
  return config.model_type == "phi3" || config.model_type.starts_with("glm4");
}

void assume_defaults(ModelConfig& config) {
  const std::string& type = config.model_type;
  if (type == "phi3" || type.starts_with("olmo")) config.rms_norm_eps = 1e-5f;
  if (type == "qwen2_moe" || type == "gpt_oss") config.attention_bias = true;
  if (type == "glm4") {
    config.rms_norm_eps = 1.5625e-7f;
    config.attention_bias = true;
  } else if (type == "smollm3") {
    config.rope_theta = 2e6;
    config.tie_word_embeddings = true;
  } else if (type == "olmo3") {
    config.rope_theta = 5e5;
    config.sliding_window = 4096;
  }
  if (!is_gemma(config)) return;
  const bool is_2 = is_gemma2(config);
  config.vocab_size = is_2 ? 256'000 : 262'208;
  config.hidden_size = 2304;
  config.intermediate_size = 9216;
  config.num_hidden_layers = 26;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 4;
  config.head_dim = 256;
  config.max_position_embeddings = is_2 ? 8192 : 131'072;
  config.rope_theta = is_2 ? 1e4 : 1e6;
  config.window_rope_theta = is_2 ? 0 : 1e4;
  config.hidden_act = "gelu_pytorch_tanh";
  config.tie_word_embeddings = true;
  config.query_scalar = 256;
  config.norm_offset = 1;
  config.attention_soft_cap = is_2 ? 50 : 0;
  config.final_soft_cap = is_2 ? 30 : 0;
  config.sliding_window = 4096;
}

std::string problem_of(const ExpertsConfig& experts) {
  const bool fits =
      experts.num_active > 0 && experts.num % experts.num_groups == 0 &&
      experts.num / experts.num_groups * experts.num_active_groups >= experts.num_active;
  if (fits) return "";
  return fmt::format("{} active of {} experts in {} of {} groups do not fit together",
                     experts.num_active, experts.num, experts.num_active_groups,
                     experts.num_groups);
}

std::vector<bool> layers_but_every(int64_t nth, int num_layers) {
  std::vector<bool> layers;
  for (int i = 1; i <= num_layers; ++i) layers.push_back(i % nth != 0);
  return layers;
}

int ModelConfig::max_context_length() const {
  double stretched = max_position_embeddings;
  // Gemma 3's max_position_embeddings is stretched already.
  if (rope_scaling.kind == "linear" && !is_gemma3(*this)) stretched *= rope_scaling.factor;
  if (rope_scaling.kind == "yarn") {
    stretched =
        std::max(stretched, rope_scaling.original_max_position_embeddings * rope_scaling.factor);
  }
  return static_cast<int>(std::min<double>(stretched, INT32_MAX));
}

ModelConfig ModelConfig::load(const std::string& model_dir) {
  if (const auto gguf = find_gguf(model_dir)) return gguf_config(Gguf(*gguf));
  check_is_folder(model_dir);
  const std::string path = model_dir + "/config.json";
  if (!file_exists(path)) {
    throw_error(ErrorCode::kNotFound, "{}: neither config.json nor a GGUF file is in this folder",
                model_dir);
  }
  Json document = parse_json(read_text_file(path, kMaxConfigBytes), path);
  keep_text_part(document);
  const JsonFields fields(document, path);

  ModelConfig config;
  config.model_dir = model_dir;
  config.config_path = path;
  if (const Json* names = fields.find("architectures")) {
    if (!names->is_array() || names->empty() || !names->front().is_string()) {
      fields.fail("architectures", "a list of one name");
    }
    config.architecture = names->front().get<std::string>();
  }
  assign_if(config.model_type, fields.string("model_type"));
  assume_defaults(config);
  if (is_gemma(config)) read_gemma(fields, config);
  if (config.model_type == "granite") read_granite(fields, config);
  config.quantization = load_quantization_config(fields, model_dir);
  read_sizes(fields, config);
  read_experts(fields, config);
  if (config.model_type == "smollm3") read_unrotated_layers(fields, config);
  read_sliding_window(fields, config);
  read_rope(fields, config);
  const char* dtype_key = fields.find("dtype") != nullptr ? "dtype" : "torch_dtype";
  if (const auto name = fields.string(dtype_key)) config.dtype = parse_dtype(*name, path);
  add_token_ids(fields, "eos_token_id", config.eos_token_ids);
  add_unknown_keys(fields, "", config);

  const std::string generation_path = model_dir + "/generation_config.json";
  if (file_exists(generation_path)) read_generation_config(generation_path, config);
  return config;
}

}  // namespace nanovllm
