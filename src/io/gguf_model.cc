#include "io/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "io/config_keys.h"
#include "io/ggml_formats.h"

namespace nanovllm {
namespace {

// Keys that change what a model computes, with the value that changes nothing. Some families read
// some of them.
constexpr std::pair<const char*, double> kKeysThatCount[] = {
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"attention.temperature_scale", 0},
    {"rope.scaling.yarn_log_multiplier", 0},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"logit_scale", 1},
    {"residual_scale", 1},
    {"embedding_scale", 1},
    {"attention.scale", 0},
    {"expert_count", 0},
};
constexpr std::string_view kRotaryDim = "rope.dimension_count";
constexpr std::string_view kRotarySections = "rope.dimension_sections";

// A table of divisors, [rotated() / 2].
std::vector<double> read_divisors(const GgufFields& fields, const ModelConfig& config,
                                  std::string_view name) {
  const GgufTensor* tensor = fields.tensor(name);
  if (tensor == nullptr) return {};
  const auto half = static_cast<size_t>(config.rotated() / 2);
  std::vector<float> values(half);
  const bool fits = find_ggml_format(tensor->type)->plain == DType::kFloat32 &&
                    tensor->shape == std::vector{static_cast<int64_t>(half)};
  if (fits) std::memcpy(values.data(), tensor->data, half * sizeof(float));
  if (!fits || !std::ranges::all_of(values, [](float v) { return std::isnormal(v) && v > 0; })) {
    throw_error(ErrorCode::kCorruptData, "{}: tensor {} is not {} float32 above 0",
                fields.file().path(), name, half);
  }
  return {values.begin(), values.end()};
}

}  // namespace

GgufFields::GgufFields(const Gguf& file)
    : file_(file), architecture_(file.string("general.architecture").value_or("")) {
  // What kind of file it is stands in several places.
  const std::string_view type = file.string("general.type").value_or("model");
  const char* kind = type == "adapter"   ? "a LoRA adapter"
                     : type == "imatrix" ? "an importance matrix"
                     : type == "mmproj" || architecture_ == "clip"
                         ? "the projector of a multimodal model"
                     : has("nextn_predict_layers") && tensor("blk.0.attn_norm.weight") == nullptr
                         ? "layers of multi-token prediction"
                         : nullptr;
  if (kind == nullptr) return;
  throw_error(ErrorCode::kUnsupported, "{}: {}; expected the model itself", file.path(), kind);
}

std::string GgufFields::key(std::string_view name) const {
  return fmt::format("{}.{}", architecture_, name);
}

std::string GgufFields::asked_for(std::string_view name) const {
  read_.emplace(name);
  return key(name);
}

bool GgufFields::has(std::string_view name) const { return file_.has(asked_for(name)); }

std::optional<int> GgufFields::size(std::string_view name, int64_t max, int64_t min) const {
  const auto value = file_.integer(asked_for(name), min, max);
  return value ? std::optional(static_cast<int>(*value)) : std::nullopt;
}

int GgufFields::required_size(std::string_view name, int64_t max) const {
  if (const auto value = size(name, max)) return *value;
  throw_error(ErrorCode::kCorruptData, "{}: {} is missing", file_.path(), key(name));
}

std::optional<double> GgufFields::number(std::string_view name, double min, double max) const {
  return file_.number(asked_for(name), min, max);
}

std::optional<bool> GgufFields::boolean(std::string_view name) const {
  return file_.boolean(asked_for(name));
}

std::optional<std::string_view> GgufFields::string(std::string_view name) const {
  return file_.string(asked_for(name));
}

std::optional<std::vector<bool>> GgufFields::booleans(std::string_view name) const {
  return file_.booleans(asked_for(name));
}

const GgufTensor* GgufFields::tensor(std::string_view name) const {
  const auto tensors = file_.tensors();
  const auto found = std::ranges::find(tensors, name, &GgufTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

void GgufFields::refuse_unread() const {
  constexpr double kAny = std::numeric_limits<double>::max();
  for (const auto& [name, harmless] : kKeysThatCount) {
    if (read_.contains(name)) continue;
    const auto value = file_.number(key(name), -kAny, kAny);
    if (!value || *value == harmless) continue;
    throw_error(ErrorCode::kUnsupported, "{}: {} is {}, which is not supported", file_.path(),
                key(name), *value);
  }
  if (const std::string sections = key(kRotarySections);
      !read_.contains(kRotarySections) && file_.has(sections)) {
    throw_error(ErrorCode::kUnsupported,
                "{}: has {}, a rotation for images, which is not supported", file_.path(),
                sections);
  }
}

void read_sizes(const GgufFields& fields, ModelConfig& config, const ConfigRules& rules) {
  config.hidden_size = fields.required_size("embedding_length");
  // Mixtures without a dense layer may say the width of an expert alone.
  const bool has_dense_width =
      fields.has("feed_forward_length") || !fields.has("expert_feed_forward_length");
  config.intermediate_size =
      fields.required_size(has_dense_width ? "feed_forward_length" : "expert_feed_forward_length");
  config.num_hidden_layers = fields.required_size("block_count", kMaxLayers);
  const int extra =
      fields.size("nextn_predict_layers", config.num_hidden_layers - 1, 0).value_or(0);
  config.num_hidden_layers -= extra;
  config.num_prediction_layers = extra;
  config.num_attention_heads = fields.required_size("attention.head_count");
  config.num_key_value_heads =
      fields.size("attention.head_count_kv", kMaxSize).value_or(config.num_attention_heads);
  config.max_position_embeddings = fields.required_size("context_length", INT32_MAX);
  config.head_dim = fields.size("attention.key_length", 1 << 16)
                        .value_or(config.hidden_size / config.num_attention_heads);
  for (const std::string_view name : {std::string_view("attention.value_length"), kRotaryDim}) {
    const int value = fields.size(name, 1 << 16).value_or(config.head_dim);
    if (value == config.head_dim) continue;
    if (name == kRotaryDim && rules.turns_parts && value < config.head_dim && value % 2 == 0) {
      config.rotary_dim = value;
      continue;
    }
    throw_error(ErrorCode::kUnsupported, "{}: {} is {}, only the {} of a whole head is supported",
                fields.file().path(), fields.key(name), value, config.head_dim);
  }
  if (const auto eps = fields.number("attention.layer_norm_rms_epsilon", 0, 1)) {
    config.rms_norm_eps = static_cast<float>(*eps);
  }
  config.sliding_window =
      fields.size("attention.sliding_window", INT32_MAX, 0).value_or(config.sliding_window);
}

void read_experts(const GgufFields& fields, ModelConfig& config) {
  ExpertsConfig& experts = config.experts;
  experts.num = fields.size("expert_count", kMaxExperts, 0).value_or(0);
  if (experts.num == 0) return;
  experts.num_active = fields.required_size("expert_used_count", experts.num);
  experts.width =
      fields.size("expert_feed_forward_length", kMaxSize).value_or(config.intermediate_size);
  experts.shared_width =
      fields.size("expert_shared_feed_forward_length", kMaxSize, 0)
          .value_or(fields.size("expert_shared_count", kMaxSize / experts.width, 0).value_or(0) *
                    experts.width);
  assign_if(experts.renormalise, fields.boolean("expert_weights_norm"));
  experts.scale = fields.number("expert_weights_scale", kAboveZero, 1e6).value_or(1);
  experts.num_groups = fields.size("expert_group_count", experts.num).value_or(1);
  experts.num_active_groups =
      fields.size("expert_group_used_count", experts.num_groups).value_or(1);
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    experts.layers.push_back(fields.tensor(fmt::format("blk.{}.ffn_gate_inp.weight", i)) !=
                             nullptr);
  }
  if (const std::string problem = problem_of(experts); !problem.empty()) {
    throw_error(ErrorCode::kCorruptData, "{}: {}", fields.file().path(), problem);
  }
}

void read_tensors(const GgufFields& fields, ModelConfig& config) {
  const GgufTensor* table = fields.tensor("token_embd.weight");
  if (table == nullptr || table->shape.size() != 2 || table->shape[0] > kMaxSize) {
    throw_error(ErrorCode::kCorruptData, "{}: the matrix token_embd.weight is missing",
                fields.file().path());
  }
  config.vocab_size = static_cast<int>(table->shape[0]);
  const int said = fields.size("vocab_size", kMaxSize).value_or(config.vocab_size);
  if (said != config.vocab_size) {
    throw_error(ErrorCode::kCorruptData, "{}: {} is {}, but token_embd.weight has {} rows",
                fields.file().path(), fields.key("vocab_size"), said, config.vocab_size);
  }
  config.tie_word_embeddings = fields.tensor("output.weight") == nullptr;
  config.attention_bias = fields.tensor("blk.0.attn_q.bias") != nullptr;
  config.mlp_bias = fields.tensor("blk.0.ffn_gate.bias") != nullptr;
  config.qk_norm = fields.tensor("blk.0.attn_q_norm.weight") != nullptr;
  const GgmlFormat* format = find_ggml_format(table->type);
  if (format != nullptr && format->plain) config.dtype = *format->plain;
}

void read_rope(const GgufFields& fields, ModelConfig& config) {
  RopeScaling& scaling = config.rope_scaling;
  if (const auto theta = fields.number("rope.freq_base", 1, 1e18)) config.rope_theta = *theta;
  double stretch = fields.number("rope.scale_linear", 0, 1e6).value_or(0);  // its name until 2023
  stretch = fields.number("rope.scaling.factor", 0, 1e6).value_or(stretch);
  const std::string_view type =
      fields.string("rope.scaling.type").value_or(stretch == 0 ? "none" : "linear");
  if (type != "none") scaling.kind = type;
  if (type == "longrope") scaling.kind = "default";  // its divisors tell all
  scaling.factor = stretch == 0 ? 1 : stretch;
  scaling.original_max_position_embeddings =
      fields.size("rope.scaling.original_context_length", INT32_MAX)
          .value_or(config.max_position_embeddings);
  scaling.beta_fast = fields.number("rope.scaling.yarn_beta_fast", kAboveZero, 1e6).value_or(32);
  scaling.beta_slow = fields.number("rope.scaling.yarn_beta_slow", kAboveZero, 1e6).value_or(1);
  if (const auto factor = fields.number("rope.scaling.yarn_attn_factor", kAboveZero, 1e6)) {
    scaling.attention_factor = *factor;
  }
  // A factor on top of YaRN's own, where that of Hugging Face's config.json is instead of it.
  if (const auto factor = fields.number("rope.scaling.attn_factor", kAboveZero, 1e6)) {
    const double own = scaling.kind == "yarn" ? 0.1 * std::log(scaling.factor) + 1 : 1;
    scaling.attention_factor = *factor * own;
  }
  scaling.divisors = read_divisors(fields, config, "rope_freqs.weight");
  if (fields.tensor("rope_factors_short.weight") == nullptr) return;
  scaling.divisors = read_divisors(fields, config, "rope_factors_short.weight");
  scaling.long_divisors = read_divisors(fields, config, "rope_factors_long.weight");
}

// Within what SamplingParams takes.
void read_sampling(const GgufFields& fields, ModelConfig& config) {
  SamplingParams& params = config.default_sampling_params;
  const auto assign = [&](auto& field, const char* name, double min, double max) {
    const auto value = fields.file().number(name, min, max);
    if (value) field = static_cast<std::remove_reference_t<decltype(field)>>(*value);
  };
  const char* temperature = "general.sampling.temp";
  assign(params.temperature, temperature, 0, 2);
  if (fields.file().has(temperature)) config.default_temperature_source = temperature;
  assign(params.top_k, "general.sampling.top_k", -1, INT32_MAX);
  assign(params.top_p, "general.sampling.top_p", kAboveZero, 1);
  assign(params.min_p, "general.sampling.min_p", 0, 1);
  assign(params.repetition_penalty, "general.sampling.penalty_repeat", kAboveZero, 1e6);
}

}  // namespace nanovllm
