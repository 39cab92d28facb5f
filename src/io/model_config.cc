#include "io/model_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "io/file.h"
#include "io/gguf_model.h"
#include "io/json.h"

namespace nanovllm {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kMaxExperts = 1 << 16;
constexpr size_t kMaxEosTokens = 1024;
constexpr double kInfinity = std::numeric_limits<double>::max();
constexpr double kAboveZero = 1e-6;  // the least of what may not be 0

template <typename T, typename V>
void assign_if(T& field, const std::optional<V>& value) {
  if (value) field = static_cast<T>(*value);
}

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
  if (config.model_type == "qwen3") {
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
  config.attention_bias = config.model_type == "qwen2_moe" || config.model_type == "gpt_oss";
  assign_if(config.attention_bias, fields.boolean("attention_bias"));
  assign_if(config.attention_bias, fields.boolean("qkv_bias"));
  assign_if(config.mlp_bias, fields.boolean("mlp_bias"));
}

// Of a layer, under the names that families have for it.
std::optional<int64_t> read_num_experts(const JsonFields& fields) {
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"})
    if (const auto num = fields.integer(key, 1, kMaxExperts)) return num;
  return {};
}

// Where config.json is silent, transformers' defaults hold, which are those of all families but for
// numbers that any file gives.
void read_experts(const JsonFields& fields, ModelConfig& config) {
  ExpertsConfig& experts = config.experts;
  assign_if(experts.num, read_num_experts(fields));
  if (experts.num == 0) return;
  const bool is_glm = config.model_type == "glm4_moe";
  experts.renormalise = is_glm || config.model_type == "mixtral" || config.model_type == "gpt_oss";
  assign_if(experts.num_active, fields.integer("num_experts_per_tok", 1, experts.num));
  experts.width = config.intermediate_size;
  assign_if(experts.width, fields.integer("moe_intermediate_size", 1, kMaxSize));
  assign_if(experts.shared_width, fields.integer("shared_expert_intermediate_size", 0, kMaxSize));
  if (const auto num = fields.integer("n_shared_experts", 0, 64))
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
  // layer 28 on, a Gemma in all but every second or sixth layer; others have it in all layers, a
  // Mistral of 4096 tokens.
  const bool is_qwen = config.model_type.rfind("qwen", 0) == 0;
  if (!is_gemma(config) && !fields.boolean("use_sliding_window").value_or(!is_qwen)) return;
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
  } else if (first) {
    for (int i = 0; i < config.num_hidden_layers; ++i) config.sliding_layers.push_back(i >= *first);
  }
}

// The factor that YaRN's paper gives for a stretch of `scale`.
double yarn_magnitude(double scale, double mscale) {
  return scale <= 1 ? 1 : 0.1 * mscale * std::log(scale) + 1;
}

[[noreturn]] void fail_without_effect(const JsonFields& rope) {
  throw_error(ErrorCode::kCorruptData,
              "{}: would have no effect; expected both a rope_type and a factor", rope.where());
}

void read_rope_scaling(const JsonFields& fields, ModelConfig& config) {
  RopeScaling& scaling = config.rope_scaling = RopeScaling();
  assign_if(scaling.kind, fields.string("type"));
  assign_if(scaling.kind, fields.string("rope_type"));
  scaling.original_max_position_embeddings = config.max_position_embeddings;
  assign_if(scaling.original_max_position_embeddings,
            fields.integer("original_max_position_embeddings", 1, INT32_MAX));
  if (scaling.kind == "yarn" && scaling.original_max_position_embeddings > 0) {
    scaling.factor = static_cast<double>(config.max_position_embeddings) /
                     scaling.original_max_position_embeddings;
  }
  assign_if(scaling.factor, fields.number("factor", 1, 1e6));
  assign_if(scaling.low_freq_factor, fields.number("low_freq_factor", kAboveZero, 1e6));
  assign_if(scaling.high_freq_factor, fields.number("high_freq_factor", kAboveZero, 1e6));
  assign_if(scaling.beta_fast, fields.number("beta_fast", kAboveZero, 1e6));
  assign_if(scaling.beta_slow, fields.number("beta_slow", kAboveZero, 1e6));
  assign_if(scaling.truncate, fields.boolean("truncate"));
  const auto mscale = fields.number("mscale", 0, 1e6);
  const auto mscale_all_dim = fields.number("mscale_all_dim", 0, 1e6);
  if (mscale.value_or(0) > 0 && mscale_all_dim.value_or(0) > 0) {
    scaling.attention_factor =
        yarn_magnitude(scaling.factor, *mscale) / yarn_magnitude(scaling.factor, *mscale_all_dim);
  }
  assign_if(scaling.attention_factor, fields.number("attention_factor", kAboveZero, 1e6));
  if (scaling.kind == "llama3" && scaling.high_freq_factor <= scaling.low_freq_factor) {
    throw_error(ErrorCode::kCorruptData,
                "{}: high_freq_factor is {}, expected more than low_freq_factor, which is {}",
                fields.where(), scaling.high_freq_factor, scaling.low_freq_factor);
  }
  const bool needs_factor =
      scaling.kind == "linear" || scaling.kind == "llama3" || scaling.kind == "yarn";
  const bool no_effect = needs_factor ? scaling.factor == 1 && fields.find("factor") == nullptr
                                      : scaling.kind == "default" && scaling.factor != 1;
  if (no_effect) fail_without_effect(fields);
  const double partial = fields.number("partial_rotary_factor", 0, 1).value_or(1);
  if (partial != 1) scaling.kind = "partial_rotary_factor";
}

// Of rope_parameters with an entry for each kind of layers, that of layers that see everything;
// what it says of those with a window is only a base.
const Json* read_window_rope(const JsonFields& kinds, ModelConfig& config) {
  if (const Json* local = kinds.find("sliding_attention")) {
    const JsonFields fields(*local, kinds.where() + ", sliding_attention");
    assign_if(config.window_rope_theta, fields.number("rope_theta", 1, 1e18));
    const std::string kind = fields.string("rope_type").value_or("default");
    if (kind != "default" || fields.number("partial_rotary_factor", 0, 1).value_or(1) != 1) {
      throw_error(ErrorCode::kUnsupported,
                  "{}: only rope_type \"default\" of whole heads is supported, found \"{}\"",
                  fields.where(), printable(kind));
    }
  }
  return kinds.find("full_attention");
}

// Where both are there, rope_scaling counts, as in transformers: people add it. What transformers
// then forgets is the rope_theta of rope_parameters, with which no model gives sense.
void read_rope(const JsonFields& fields, ModelConfig& config) {
  const auto theta = fields.number("rope_theta", 1, 1e18);
  assign_if(config.rope_theta, theta);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const Json* value = fields.find(key);
    if (value != nullptr && is_gemma3(config) &&
        (value->contains("full_attention") || value->contains("sliding_attention"))) {
      value = read_window_rope(JsonFields(*value, fields.where() + ", " + key), config);
    }
    if (value == nullptr || *value == Json::object()) continue;
    const JsonFields rope(*value, fields.where() + ", " + key);
    assign_if(config.rope_theta, theta);
    assign_if(config.rope_theta, rope.number("rope_theta", 1, 1e18));
    read_rope_scaling(rope, config);
    const bool is_named = rope.find("rope_type") != nullptr || rope.find("type") != nullptr;
    for (const auto& [name, field] : value->items()) {
      const bool acts_alone = name == "rope_theta" || name == "partial_rotary_factor" ||
                              name == "factor" || field.is_null();  // only factor 1 comes here
      if (field.is_object()) {                                      // one for each kind of layers
        config.rope_scaling.kind = name;
      } else if (!is_named && !acts_alone) {
        fail_without_effect(rope);
      }
    }
  }
  const double partial = fields.number("partial_rotary_factor", 0, 1).value_or(1);
  if (partial != 1) config.rope_scaling.kind = "partial_rotary_factor";
  // YaRN divides by its logarithm.
  if (config.rope_scaling.kind == "yarn" && config.rope_theta <= 1) {
    throw_error(ErrorCode::kCorruptData, "{}: rope_theta is {}, but yarn needs more than 1",
                fields.where(), config.rope_theta);
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
    config.temperature_source = std::filesystem::path(path).filename();
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

void assume_defaults(ModelConfig& config) {
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
  config.quantization = load_quantization_config(fields, model_dir);
  read_sizes(fields, config);
  read_experts(fields, config);
  read_sliding_window(fields, config);
  read_rope(fields, config);
  const char* dtype_key = fields.find("dtype") != nullptr ? "dtype" : "torch_dtype";
  if (const auto name = fields.string(dtype_key)) config.dtype = parse_dtype(*name, path);
  add_token_ids(fields, "eos_token_id", config.eos_token_ids);

  const std::string generation_path = model_dir + "/generation_config.json";
  if (file_exists(generation_path)) read_generation_config(generation_path, config);
  return config;
}

}  // namespace nanovllm
