#include "io/config_readers.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/check.h"
#include "io/config_keys.h"
#include "io/file.h"

namespace nanovllm {
namespace {

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

}  // namespace

void keep_text_part(Json& document) {
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

void read_sizes(const JsonFields& fields, ModelConfig& config) {
  assign_if(config.vocab_size, fields.integer("vocab_size", 1, kMaxSize));
  assign_if(config.hidden_size, fields.integer("hidden_size", 1, kMaxSize));
  assign_if(config.intermediate_size, fields.integer("intermediate_size", 1, kMaxSize));
  assign_if(config.num_hidden_layers, fields.integer("num_hidden_layers", 1, kMaxLayers));
  assign_if(config.num_attention_heads, fields.integer("num_attention_heads", 1, kMaxSize));
  if (config.num_key_value_heads == 0) config.num_key_value_heads = config.num_attention_heads;
  assign_if(config.num_key_value_heads, fields.integer("num_key_value_heads", 1, kMaxSize));
  if (config.head_dim == 0 && config.num_attention_heads > 0) {
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  assign_if(config.head_dim, fields.integer("head_dim", 1, 1 << 16));
  assign_if(config.max_position_embeddings,
            fields.integer("max_position_embeddings", 1, INT32_MAX));
  assign_if(config.rms_norm_eps, fields.number("rms_norm_eps", 0, 1));
  assign_if(config.hidden_act, fields.string("hidden_act"));
  assign_if(config.tie_word_embeddings, fields.boolean("tie_word_embeddings"));
  assign_if(config.attention_bias, fields.boolean("attention_bias"));
  assign_if(config.attention_bias, fields.boolean("qkv_bias"));
  assign_if(config.mlp_bias, fields.boolean("mlp_bias"));
}

void read_experts(const JsonFields& fields, ModelConfig& config) {
  ExpertsConfig& experts = config.experts;
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    assign_if(experts.num, fields.integer(key, 1, kMaxExperts));
  }
  if (experts.num == 0) return;
  assign_if(experts.num_active, fields.integer("num_experts_per_tok", 1, experts.num));
  assign_if(config.qk_norm, fields.boolean("use_qk_norm"));
  for (const char* key : {"num_nextn_predict_layers", "num_mtp_layers"}) {
    assign_if(config.num_prediction_layers, fields.integer(key, 0, kMaxLayers));
  }
  experts.width = config.intermediate_size;
  assign_if(experts.width, fields.integer("moe_intermediate_size", 1, kMaxSize));
  assign_if(experts.shared_width, fields.integer("shared_expert_intermediate_size", 0, kMaxSize));
  if (const auto num =
          fields.integer("n_shared_experts", 0, kMaxSize / std::max(1, experts.width))) {
    experts.shared_width = static_cast<int>(*num * experts.width);
  }
  assign_if(experts.renormalise, fields.boolean("norm_topk_prob"));
  assign_if(experts.scale, fields.number("routed_scaling_factor", kAboveZero, 1e6));
  assign_if(experts.num_groups, fields.integer("n_group", 1, experts.num));
  assign_if(experts.num_active_groups, fields.integer("topk_group", 1, experts.num_groups));
  assign_if(experts.num_dense_layers, fields.integer("first_k_dense_replace", 0, kMaxLayers));
  const int64_t step = fields.integer("decoder_sparse_step", 1, kMaxLayers).value_or(1);
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    experts.layers.push_back(i >= experts.num_dense_layers && (i + 1) % step == 0);
  }
  if (const Json* listed = fields.find("mlp_only_layers")) {
    if (!listed->is_array()) fields.fail("mlp_only_layers", "a list of layers");
    for (const Json& layer : *listed) {
      if (!layer.is_number_unsigned()) fields.fail("mlp_only_layers", "a list of layers");
      const auto i = layer.get<uint64_t>();
      if (i < experts.layers.size()) experts.layers[i] = false;
    }
  }
  if (const std::string problem = problem_of(experts); !problem.empty()) {
    throw_error(ErrorCode::kCorruptData, "{}: {}", fields.where(), problem);
  }
  for (const auto& [key, only] : {std::pair("swiglu_limit", 7.0), {"swiglu_alpha", 1.702}}) {
    if (fields.number(key, 0, 1e6).value_or(only) != only) {
      fields.fail(key, fmt::format("{}", only));
    }
  }
  if (fields.find("clip_qkv") == nullptr) return;
  throw_error(ErrorCode::kUnsupported, "{}: clip_qkv is not supported, only null", fields.where());
}

void read_windows(const JsonFields& fields, ModelConfig& config, const ConfigRules& rules) {
  using Windows = ConfigRules::Windows;
  const bool is_used =
      fields.boolean("use_sliding_window").value_or(rules.windows != Windows::kIfAskedFor);
  if (is_used || rules.windows == Windows::kAlways) {
    assign_if(config.sliding_window, fields.integer("sliding_window", 1, INT32_MAX));
  } else {
    config.sliding_window = 0;
  }
  if (config.sliding_window == 0) {
    config.sliding_layers.clear();
    return;
  }
  const int64_t first =
      fields.integer("max_window_layers", 0, INT32_MAX).value_or(rules.first_window_layer);
  if (auto layers = read_layer_types(fields, "sliding_attention", config.num_hidden_layers)) {
    config.sliding_layers = *std::move(layers);
  } else if (config.sliding_layers.empty() && first > 0) {
    for (int i = 0; i < config.num_hidden_layers; ++i) config.sliding_layers.push_back(i >= first);
  }
}

void read_dtype(const JsonFields& fields, ModelConfig& config) {
  const char* key = fields.find("dtype") != nullptr ? "dtype" : "torch_dtype";
  if (const auto name = fields.string(key)) config.dtype = parse_dtype(*name, fields.where());
}

void read_end_tokens(const JsonFields& fields, ModelConfig& config) {
  std::vector<int32_t>& ids = config.eos_token_ids;
  const char* key = "eos_token_id";
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
  read_end_tokens(fields, config);
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

}  // namespace nanovllm
