#include "io/gguf_model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "io/config_keys.h"
#include "io/ggml_formats.h"
#include "io/json.h"

namespace nanovllm {
namespace {

struct Family {
  const char* name;  // general.architecture
  const char* architecture;
  const char* model_type;
  bool is_interleaved;  // rows of q and k
  // Of a file with a window, where that is another one.
  const char* windowed_architecture = nullptr;
  bool has_post_norms = false;  // Hugging Face's post_attention_layernorm is behind attention
};

constexpr Family kFamilies[] = {
    {"gemma2", "Gemma2ForCausalLM", "gemma2", false, nullptr, true},
    {"gemma3", "Gemma3ForCausalLM", "gemma3_text", false, nullptr, true},
    {"glm4", "Glm4ForCausalLM", "glm4", false},
    {"glm4moe", "Glm4MoeForCausalLM", "glm4_moe", false},
    {"gpt-oss", "GptOssForCausalLM", "gpt_oss", false},
    {"granite", "GraniteForCausalLM", "granite", true},
    {"llama", "LlamaForCausalLM", "llama", true, "MistralForCausalLM"},
    {"mistral3", "MistralForCausalLM", "mistral", true},
    {"olmo2", "Olmo2ForCausalLM", "olmo2", false, "Olmo3ForCausalLM", true},
    {"olmoe", "OlmoeForCausalLM", "olmoe", false},
    {"phi3", "Phi3ForCausalLM", "phi3", false},
    {"qwen2", "Qwen2ForCausalLM", "qwen2", false},
    {"qwen2moe", "Qwen2MoeForCausalLM", "qwen2_moe", false},
    {"qwen3", "Qwen3ForCausalLM", "qwen3", false},
    {"qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe", false},
    {"smollm3", "SmolLM3ForCausalLM", "smollm3", true},
};

// Hybrids above all.
constexpr std::string_view kLater[] = {"gemma4", "qwen35", "qwen35moe", "qwen3next"};

const Family* find_family(std::string_view name) {
  const auto* found = std::ranges::find(kFamilies, name, &Family::name);
  return found == std::end(kFamilies) ? nullptr : found;
}

// Keys that change what a model computes and that none of the families above has, with the value
// that changes nothing.
constexpr std::pair<const char*, double> kUnsupportedKeys[] = {
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"attention.temperature_scale", 0},
    {"rope.scaling.yarn_log_multiplier", 0},
};
constexpr const char* kExpertCount = "expert_count";
constexpr std::string_view kRotaryDim = "rope.dimension_count";
constexpr const char* kScale = "attention.scale";
constexpr const char* kScoreCap = "attn_logit_softcapping";
constexpr const char* kLogitCap = "final_logit_softcapping";
constexpr const char* kLogitScale = "logit_scale";
constexpr const char* kResidualScale = "residual_scale";
constexpr const char* kEmbeddingScale = "embedding_scale";

constexpr std::pair<const char*, const char*> kTensorNames[] = {
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.router", "ffn_gate_inp"},
    {"mlp.experts.gate_up_proj", "ffn_gate_up_exps"},
    {"mlp.experts.gate_proj", "ffn_gate_exps"},
    {"mlp.experts.up_proj", "ffn_up_exps"},
    {"mlp.experts.down_proj", "ffn_down_exps"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"block_sparse_moe.experts.w1", "ffn_gate_exps"},
    {"block_sparse_moe.experts.w3", "ffn_up_exps"},
    {"block_sparse_moe.experts.w2", "ffn_down_exps"},
    {"self_attn.qkv_proj", "attn_qkv"},
    {"mlp.gate_up_proj", "ffn_up"},
    {"post_mlp_layernorm", "post_ffw_norm"},
    {"post_self_attn_layernorm", "post_attention_norm"},
};
// Of layers with norms behind their blocks, too.
constexpr std::pair<const char*, const char*> kPostNormNames[] = {
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
};

// Takes the number out of the name of an expert, "mlp.experts.3.up_proj", and returns it: ".3"; or
// nothing.
std::string take_expert(std::string& name) {
  constexpr std::string_view kExperts = ".experts";
  const size_t at = name.find(kExperts), begin = at + kExperts.size();
  if (at == name.npos || begin + 1 >= name.size() || !std::isdigit(name[begin + 1])) return "";
  const size_t end = name.find('.', begin + 1);
  std::string number = name.substr(begin, end - begin);
  name.erase(begin, number.size());
  return number;
}

// The metadata of one architecture.
class MetadataReader {
 public:
  explicit MetadataReader(const Gguf& file) : file_(file), family_(check_kind(file)) {}

  ModelConfig read() {
    config_.model_type = family_.model_type;
    for (const auto& [name, harmless] : kUnsupportedKeys) refuse(name, harmless);
    if (!is_gemma()) {
      for (const char* name : {kScoreCap, kLogitCap}) refuse(name, 0);
    }
    if (const std::string sections = key("rope.dimension_sections"); file_.has(sections)) {
      throw_error(ErrorCode::kUnsupported,
                  "{}: has {}, a rotation for images, which is not supported", file_.path(),
                  sections);
    }
    if (!is_granite()) {
      for (const char* name : {kLogitScale, kResidualScale, kEmbeddingScale}) refuse(name, 1);
      if (!is_gemma()) refuse(kScale, 0);
    }
    config_.model_dir = config_.config_path = file_.path();
    config_.architecture = family_.architecture;
    if (config_.model_type == "llama" && number(kExpertCount, 0, kMaxSize).value_or(0) > 0) {
      config_.architecture = "MixtralForCausalLM";
      config_.model_type = "mixtral";
    }
    assume_defaults(config_);
    read_sizes();
    read_experts();
    if (is_gemma()) read_gemma();
    if (is_granite()) read_granite();
    if (config_.model_type == "olmo2") read_olmo();
    if (config_.model_type == "smollm3") {  // llama.cpp's files do not say
      config_.unrotated_layers = layers_but_every(4, config_.num_hidden_layers);
      config_.unrotated_layers.flip();
    }
    read_tensors();
    read_rope();
    read_sampling();
    return std::move(config_);
  }

 private:
  // What kind of file it is stands in several places.
  static const Family& check_kind(const Gguf& file) {
    const std::string_view type = file.string("general.type").value_or("model");
    const std::string_view name = file.string("general.architecture").value_or("");
    const char* kind = type == "adapter"                    ? "a LoRA adapter"
                       : type == "imatrix"                  ? "an importance matrix"
                       : type == "mmproj" || name == "clip" ? "the projector of a multimodal model"
                                                            : nullptr;
    if (kind != nullptr) {
      throw_error(ErrorCode::kUnsupported, "{}: {}; expected the model itself", file.path(), kind);
    }
    if (const Family* family = find_family(name)) return *family;
    std::vector<const char*> names;
    for (const Family& family : kFamilies) names.push_back(family.name);
    if (std::ranges::find(kLater, name) != std::end(kLater)) {
      throw_error(ErrorCode::kUnsupported,
                  "{}: general.architecture {} is not supported yet: it comes in a later version",
                  file.path(), name);
    }
    throw_error(ErrorCode::kUnsupported, "{}: {}; supported are {}", file.path(),
                name.empty()
                    ? std::string("general.architecture is missing")
                    : fmt::format("general.architecture {} is not supported", printable(name)),
                fmt::join(names, ", "));
  }

  bool is_gemma() const { return std::string_view(family_.name).starts_with("gemma"); }
  bool is_granite() const { return config_.model_type == "granite"; }

  std::string key(std::string_view name) const { return fmt::format("{}.{}", family_.name, name); }
  std::optional<int> size(std::string_view name, int64_t max, int64_t min = 1) const {
    const auto value = file_.integer(key(name), min, max);
    return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
  }
  int required_size(std::string_view name, int64_t max = kMaxSize) const {
    if (const auto value = size(name, max)) return *value;
    throw_error(ErrorCode::kCorruptData, "{}: {} is missing", file_.path(), key(name));
  }
  std::optional<double> number(std::string_view name, double min, double max) const {
    return file_.number(key(name), min, max);
  }

  void refuse(const char* name, double harmless) const {
    constexpr double kAny = std::numeric_limits<double>::max();
    const auto value = number(name, -kAny, kAny);
    if (!value || *value == harmless) return;
    throw_error(ErrorCode::kUnsupported, "{}: {} is {}, which is not supported", file_.path(),
                key(name), *value);
  }

  const GgufTensor* find(std::string_view name) const {
    const auto tensors = file_.tensors();
    const auto found = std::ranges::find(tensors, name, &GgufTensor::name);
    return found == tensors.end() ? nullptr : &*found;
  }

  void read_sizes() {
    config_.hidden_size = required_size("embedding_length");
    config_.intermediate_size = required_size("feed_forward_length");
    config_.num_hidden_layers = required_size("block_count", kMaxLayers);
    const int extra = size("nextn_predict_layers", config_.num_hidden_layers - 1, 0).value_or(0);
    config_.num_hidden_layers -= extra;
    config_.num_prediction_layers = extra;
    config_.num_attention_heads = required_size("attention.head_count");
    config_.num_key_value_heads =
        size("attention.head_count_kv", kMaxSize).value_or(config_.num_attention_heads);
    config_.max_position_embeddings = required_size("context_length", INT32_MAX);
    config_.head_dim = size("attention.key_length", 1 << 16)
                           .value_or(config_.hidden_size / config_.num_attention_heads);
    for (const std::string_view name : {std::string_view("attention.value_length"), kRotaryDim}) {
      const int value = size(name, 1 << 16).value_or(config_.head_dim);
      if (value == config_.head_dim) continue;
      if (name == kRotaryDim && turns_parts(config_) && value < config_.head_dim &&
          value % 2 == 0) {
        config_.rotary_dim = value;
        continue;
      }
      throw_error(ErrorCode::kUnsupported, "{}: {} is {}, only the {} of a whole head is supported",
                  file_.path(), key(name), value, config_.head_dim);
    }
    if (const auto eps = number("attention.layer_norm_rms_epsilon", 0, 1)) {
      config_.rms_norm_eps = static_cast<float>(*eps);
    }
    config_.sliding_window =
        size("attention.sliding_window", INT32_MAX, 0).value_or(config_.sliding_window);
    const bool is_plain = config_.model_type == family_.model_type;  // no mixture
    if (config_.sliding_window > 0 && is_plain && family_.windowed_architecture != nullptr) {
      config_.architecture = family_.windowed_architecture;
    }
    if (config_.model_type == "gpt_oss")
      config_.sliding_layers = layers_but_every(2, config_.num_hidden_layers);
  }

  void read_experts() {
    ExpertsConfig& experts = config_.experts;
    experts.num = size(kExpertCount, kMaxExperts, 0).value_or(0);
    if (experts.num == 0) return;
    const std::string_view type = config_.model_type;
    const bool is_mixture = type.ends_with("moe") || type == "mixtral" || type == "gpt_oss";
    if (!is_mixture) refuse(kExpertCount, 0);
    experts.num_active = required_size("expert_used_count", experts.num);
    experts.width =
        size("expert_feed_forward_length", kMaxSize).value_or(config_.intermediate_size);
    experts.shared_width =
        size("expert_shared_feed_forward_length", kMaxSize, 0)
            .value_or(size("expert_shared_count", kMaxSize / experts.width, 0).value_or(0) *
                      experts.width);
    experts.renormalise =
        file_.boolean(key("expert_weights_norm")).value_or(type != "qwen2_moe" && type != "olmoe");
    experts.scale = number("expert_weights_scale", kAboveZero, 1e6).value_or(1);
    experts.num_groups = size("expert_group_count", experts.num).value_or(1);
    experts.num_active_groups = size("expert_group_used_count", experts.num_groups).value_or(1);
    for (int i = 0; i < config_.num_hidden_layers; ++i)
      experts.layers.push_back(find(fmt::format("blk.{}.ffn_gate_inp.weight", i)) != nullptr);
    if (const std::string problem = problem_of(experts); !problem.empty())
      throw_error(ErrorCode::kCorruptData, "{}: {}", file_.path(), problem);
  }

  void read_granite() {
    const auto factor = [&](const char* name) { return number(name, kAboveZero, 1e6).value_or(1); };
    config_.embedding_scale = static_cast<float>(factor(kEmbeddingScale));
    config_.residual_scale = static_cast<float>(factor(kResidualScale));
    config_.logit_scale = static_cast<float>(1 / factor(kLogitScale));
    const auto scale = number(kScale, kAboveZero, 1e6);
    config_.query_scalar = scale ? 1 / (*scale * *scale) : 0;
  }

  // An OLMo 3 is one with a window, which it has in three of four layers; the others alone have
  // their rotation stretched.
  void read_olmo() {
    if (config_.sliding_window == 0) return;
    config_.sliding_layers = layers_but_every(4, config_.num_hidden_layers);
    config_.window_rope_theta = number("rope.freq_base_swa", 1, 1e18)
                                    .value_or(number("rope.freq_base", 1, 1e18).value_or(1e4));
    const std::string pattern = key("attention.sliding_window_pattern");
    if (!file_.has(pattern)) return;
    const auto listed = file_.booleans(pattern).value_or(std::vector<bool>());
    if (std::ssize(listed) != config_.num_hidden_layers) {
      file_.fail(pattern, "true or false for every layer");
    }
    config_.sliding_layers = listed;
  }

  // Files of Gemma leave out what llama.cpp knows by the number of layers.
  void read_gemma() {
    const bool is_2 = config_.model_type == "gemma2";
    const int layers = config_.num_hidden_layers;
    config_.norm_offset = 0;  // the weights of norms hold 1 + w
    const bool is_27b = layers == (is_2 ? 46 : 62);
    config_.query_scalar = config_.head_dim;
    if (is_27b) config_.query_scalar = 1.0 * config_.hidden_size / config_.num_attention_heads;
    if (const double scale = number(kScale, 0, 1e6).value_or(0); scale > 0) {
      config_.query_scalar = 1 / (scale * scale);
    }
    const auto read_cap = [&](float& cap, const char* name) {
      cap = static_cast<float>(number(name, 0, 1e6).value_or(cap));
    };
    read_cap(config_.attention_soft_cap, kScoreCap);
    read_cap(config_.final_soft_cap, kLogitCap);
    config_.sliding_layers = layers_but_every(
        size("attention.sliding_window_pattern", INT32_MAX).value_or(is_2 ? 2 : 6), layers);
    if (is_2) return;
    config_.window_rope_theta =
        number("rope.freq_base_swa", 1, 1e18).value_or(config_.window_rope_theta);
  }

  // What the tensors tell.
  void read_tensors() {
    const GgufTensor* table = find("token_embd.weight");
    if (table == nullptr || table->shape.size() != 2 || table->shape[0] > kMaxSize) {
      throw_error(ErrorCode::kCorruptData, "{}: the matrix token_embd.weight is missing",
                  file_.path());
    }
    config_.vocab_size = static_cast<int>(table->shape[0]);
    const int said = size("vocab_size", kMaxSize).value_or(config_.vocab_size);
    if (said != config_.vocab_size) {
      throw_error(ErrorCode::kCorruptData, "{}: {} is {}, but token_embd.weight has {} rows",
                  file_.path(), key("vocab_size"), said, config_.vocab_size);
    }
    config_.tie_word_embeddings = find("output.weight") == nullptr;
    config_.attention_bias = find("blk.0.attn_q.bias") != nullptr;
    config_.mlp_bias = find("blk.0.ffn_gate.bias") != nullptr;
    config_.qk_norm = find("blk.0.attn_q_norm.weight") != nullptr;
    const GgmlFormat* format = find_ggml_format(table->type);
    if (format != nullptr && format->plain) config_.dtype = *format->plain;
  }

  // A table of divisors, [rotated() / 2].
  std::vector<double> divisors(std::string_view name) const {
    const GgufTensor* tensor = find(name);
    if (tensor == nullptr) return {};
    const auto half = static_cast<size_t>(config_.rotated() / 2);
    std::vector<float> values(half);
    const bool fits = find_ggml_format(tensor->type)->plain == DType::kFloat32 &&
                      tensor->shape == std::vector{static_cast<int64_t>(half)};
    if (fits) std::memcpy(values.data(), tensor->data, half * sizeof(float));
    if (!fits || !std::ranges::all_of(values, [](float v) { return std::isnormal(v) && v > 0; })) {
      throw_error(ErrorCode::kCorruptData, "{}: tensor {} is not {} float32 above 0", file_.path(),
                  name, half);
    }
    return {values.begin(), values.end()};
  }

  void read_rope() {
    RopeScaling& scaling = config_.rope_scaling;
    if (const auto theta = number("rope.freq_base", 1, 1e18)) config_.rope_theta = *theta;
    double stretch = number("rope.scale_linear", 0, 1e6).value_or(0);  // its name until 2023
    stretch = number("rope.scaling.factor", 0, 1e6).value_or(stretch);
    const std::string_view type =
        file_.string(key("rope.scaling.type")).value_or(stretch == 0 ? "none" : "linear");
    if (type != "none") scaling.kind = type;
    if (type == "longrope") scaling.kind = "default";  // its divisors tell all
    scaling.factor = stretch == 0 ? 1 : stretch;
    scaling.original_max_position_embeddings =
        size("rope.scaling.original_context_length", INT32_MAX)
            .value_or(config_.max_position_embeddings);
    scaling.truncate = config_.model_type != "gpt_oss";
    scaling.beta_fast = number("rope.scaling.yarn_beta_fast", kAboveZero, 1e6).value_or(32);
    scaling.beta_slow = number("rope.scaling.yarn_beta_slow", kAboveZero, 1e6).value_or(1);
    if (const auto factor = number("rope.scaling.yarn_attn_factor", kAboveZero, 1e6)) {
      scaling.attention_factor = *factor;
    }
    // A factor on top of YaRN's own, where that of Hugging Face's config.json is instead of it.
    if (const auto factor = number("rope.scaling.attn_factor", kAboveZero, 1e6)) {
      const double own = scaling.kind == "yarn" ? 0.1 * std::log(scaling.factor) + 1 : 1;
      scaling.attention_factor = *factor * own;
    }
    scaling.divisors = divisors("rope_freqs.weight");
    if (find("rope_factors_short.weight") == nullptr) return;
    scaling.divisors = divisors("rope_factors_short.weight");
    scaling.long_divisors = divisors("rope_factors_long.weight");
  }

  // Within what SamplingParams takes.
  void read_sampling() {
    SamplingParams& params = config_.default_sampling_params;
    const auto assign = [&](auto& field, const char* name, double min, double max) {
      const auto value = file_.number(name, min, max);
      if (value) field = static_cast<std::remove_reference_t<decltype(field)>>(*value);
    };
    const char* temperature = "general.sampling.temp";
    assign(params.temperature, temperature, 0, 2);
    if (file_.has(temperature)) config_.default_temperature_source = temperature;
    assign(params.top_k, "general.sampling.top_k", -1, INT32_MAX);
    assign(params.top_p, "general.sampling.top_p", kAboveZero, 1);
    assign(params.min_p, "general.sampling.min_p", 0, 1);
    assign(params.repetition_penalty, "general.sampling.penalty_repeat", kAboveZero, 1e6);
  }

  const Gguf& file_;
  const Family& family_;
  ModelConfig config_;
};

}  // namespace

ModelConfig gguf_config(const Gguf& file) { return MetadataReader(file).read(); }

std::string gguf_tensor_name(std::string_view name, bool post_norms) {
  constexpr std::string_view kLayers = "model.layers.";
  std::string prefix;
  std::string_view rest = name;
  if (rest.starts_with(kLayers)) {
    const size_t dot = rest.find('.', kLayers.size());
    if (dot == rest.npos) return std::string(name);
    prefix = fmt::format("blk.{}.", rest.substr(kLayers.size(), dot - kLayers.size()));
    rest.remove_prefix(dot + 1);
  }
  if (rest == "self_attn.sinks") return prefix + "attn_sinks.weight";
  if (rest == "mlp.gate.e_score_correction_bias") return prefix + "exp_probs_b.bias";
  const size_t end = rest.rfind('.');  // of .weight or .bias
  if (end == rest.npos) return std::string(name);
  std::string part(rest.substr(0, end));
  const std::string expert = take_expert(part);
  using Names = std::span<const std::pair<const char*, const char*>>;
  for (const Names names : {Names(kPostNormNames), Names(kTensorNames)}) {
    if (names.data() == kPostNormNames && !post_norms) continue;
    for (const auto& [ours, theirs] : names) {
      if (part != ours) continue;
      std::string found = prefix + theirs;
      // Each alone, as files of before April 2024 have them, an expert is no part of "ffn_up_exps".
      if (!expert.empty()) found.replace(found.rfind("_exps"), 5, expert);
      return found.append(rest.substr(end));
    }
  }
  return std::string(name);
}

int64_t gguf_interleaved_head(const Gguf& file) {
  const Family* family = find_family(file.string("general.architecture").value_or(""));
  return family != nullptr && family->is_interleaved ? gguf_config(file).head_dim : 0;
}

bool gguf_has_post_norms(const Gguf& file) {
  const Family* family = find_family(file.string("general.architecture").value_or(""));
  return family != nullptr && family->has_post_norms;
}

bool is_interleaved(std::string_view tensor_name) {
  return tensor_name.find(".attn_q.") != tensor_name.npos ||
         tensor_name.find(".attn_k.") != tensor_name.npos;
}

bool is_matrix_of_one_row(std::string_view tensor_name) {
  return tensor_name.ends_with(".ffn_gate_inp_shexp.weight");
}

bool is_rotary_table(std::string_view tensor_name) {
  return tensor_name == "rope_freqs.weight" || tensor_name.starts_with("rope_factors_") ||
         tensor_name.find(".attn_rot_embd.") != tensor_name.npos;
}

}  // namespace nanovllm
