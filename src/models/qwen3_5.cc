// Qwen3.5, 3.6 and 3.8, and Qwen3-Next: three recurrent layers (the gated delta rule, arXiv
// 2412.06464) to one of attention, whose results have a gate and a quarter of whose heads turns.
// Norms multiply by 1 + weight, but not that of recurrent layers' results.
#include <algorithm>

#include "base/check.h"
#include "io/recurrent_config.h"
#include "models/families.h"

namespace nanovllm {
namespace {

constexpr int kAttentionInterval = 4;  // every nth layer

void assume_qwen3_5(ModelConfig& config) {
  config.head_dim = 256;
  config.norm_offset = 1;
  config.recurrent = {.num_key_heads = 16,
                      .num_value_heads = 32,
                      .key_dim = 128,
                      .value_dim = 128,
                      .conv_width = 4};
}

[[noreturn]] void refuse(const std::string& where, const char* what) {
  throw_error(ErrorCode::kUnsupported, "{}: {}, which is not supported", where, what);
}

void read_qwen3_5(const JsonFields& fields, ModelConfig& config) {
  read_recurrent(fields, config);
  // Files may have some, whatever the config says.
  config.num_prediction_layers = static_cast<int>(
      std::max<int64_t>(fields.integer("mtp_num_hidden_layers", 0, kMaxLayers).value_or(1), 1));
  config.rotary_dim = config.head_dim / 4;
  if (!fields.boolean("attn_output_gate").value_or(true)) {
    refuse(fields.where(), "attn_output_gate is false");
  }
  if (fields.boolean("mtp_use_dedicated_embeddings").value_or(false)) {
    refuse(fields.where(), "mtp_use_dedicated_embeddings is true");
  }
  const std::string gate = fields.string("output_gate_type").value_or("swish");
  if (gate != "swish" && gate != "silu") refuse(fields.where(), "output_gate_type is not swish");
  // States are float32 in any case.
  for (const char* harmless : {"mamba_ssm_dtype", "language_model_only"}) {
    fields.find(harmless);
  }
}

void read_gguf_recurrent(const GgufFields& fields, ModelConfig& config) {
  RecurrentConfig& sizes = config.recurrent;
  sizes.num_key_heads = fields.required_size("ssm.group_count");
  sizes.num_value_heads = fields.required_size("ssm.time_step_rank");
  sizes.key_dim = fields.required_size("ssm.state_size", 1 << 16);
  sizes.conv_width = fields.required_size("ssm.conv_kernel", kMaxConvWidth);
  const int inner = fields.required_size("ssm.inner_size");
  if (inner % sizes.num_value_heads != 0) {
    throw_error(ErrorCode::kCorruptData, "{}: {} is {}, expected a multiple of {}, which is {}",
                fields.file().path(), fields.key("ssm.inner_size"), inner,
                fields.key("ssm.time_step_rank"), sizes.num_value_heads);
  }
  sizes.value_dim = inner / sizes.num_value_heads;
  sizes.has_decay = true;
  config.norm_offset = 0;                 // the weights of norms hold 1 + w
  fields.has("rope.dimension_sections");  // positions of texts have one number
  const int num_layers = config.num_hidden_layers;
  sizes.layers = layers_but_every(
      fields.size("full_attention_interval", kMaxLayers).value_or(kAttentionInterval), num_layers);
  if (const auto listed = fields.booleans("attention.recurrent_layers")) {
    if (std::ssize(*listed) < num_layers) {
      throw_error(ErrorCode::kCorruptData,
                  "{}: {} has {} elements, expected one for each of {} "
                  "layers",
                  fields.file().path(), fields.key("attention.recurrent_layers"), listed->size(),
                  num_layers);
    }
    sizes.layers.assign(listed->begin(), listed->begin() + num_layers);
  }
  check_recurrent(fields.file().path(), sizes);
}

void read_gguf_qwen3_5(const GgufFields& fields, ModelConfig& config) {
  read_gguf_recurrent(fields, config);
  config.recurrent.key_heads_take_turns = true;
}

void assume_qwen3_5_moe(ModelConfig& config) {
  assume_qwen3_5(config);
  config.intermediate_size = 512;  // of an expert: there are no dense layers
  config.experts.num = 256;
  config.experts.num_active = 8;
  config.experts.shared_width = 512;
}

void read_qwen3_5_moe(const JsonFields& fields, ModelConfig& config) {
  read_qwen3_5(fields, config);
  config.experts.renormalise = true;
}

void read_gguf_qwen3_5_moe(const GgufFields& fields, ModelConfig& config) {
  read_gguf_qwen3_5(fields, config);
  config.experts.renormalise = true;
}

void assume_qwen3_next(ModelConfig& config) {
  assume_qwen3_5(config);
  config.experts.renormalise = true;
}

DecoderOptions qwen3_5_options(const ModelConfig& config) {
  return {.qk_norm = QkNorm::kEachHead,
          .qkv_bias = config.attention_bias,
          .output_bias = config.attention_bias,
          .attention_gate = true,
          .norm_offset = config.norm_offset};
}

DecoderOptions qwen3_5_moe_options(const ModelConfig& config) {
  DecoderOptions options = qwen3_5_options(config);
  options.experts = ExpertOptions{.has_shared_gate = true};
  return options;
}

DecoderOptions qwen3_next_options(const ModelConfig& config) {
  DecoderOptions options = qwen3_5_moe_options(config);
  options.delta.names = DeltaOptions::Names::kFusedByKeyHead;
  return options;
}

constexpr Family qwen3_5(const SupportedModel& model, bool has_text_config) {
  return {.model = model,
          .model_type = "qwen3_5_text",
          .rules = {.has_text_config = has_text_config, .turns_parts = true},
          .defaults = assume_qwen3_5,
          .read = read_qwen3_5,
          .read_gguf = read_gguf_qwen3_5,
          .options = qwen3_5_options};
}

constexpr Family qwen3_5_moe(const SupportedModel& model, bool has_text_config) {
  return {.model = model,
          .model_type = "qwen3_5_moe_text",
          .rules = {.has_text_config = has_text_config,
                    .turns_parts = true,
                    .experts_are_in_order = true},
          .defaults = assume_qwen3_5_moe,
          .read = read_qwen3_5_moe,
          .read_gguf = read_gguf_qwen3_5_moe,
          .options = qwen3_5_moe_options};
}

}  // namespace

constinit const Family kQwen3_5 =
    qwen3_5({"Qwen3_5ForCausalLM", "Qwen3.5, 3.6, 3.8", "qwen35", "qwen3", "qwen3_coder"}, false);
constinit const Family kQwen3_5WithTowers =
    qwen3_5({"Qwen3_5ForConditionalGeneration", "Qwen3.5, 3.6, 3.8, the text part", "", "qwen3",
             "qwen3_coder"},
            true);

constinit const Family kQwen3_5Moe = qwen3_5_moe(
    {"Qwen3_5MoeForCausalLM", "Qwen3.5-MoE, 3.6, 3.8", "qwen35moe", "qwen3", "qwen3_coder"}, false);
constinit const Family kQwen3_5MoeWithTowers =
    qwen3_5_moe({"Qwen3_5MoeForConditionalGeneration", "Qwen3.5-MoE, 3.6, 3.8, the text part", "",
                 "qwen3", "qwen3_coder"},
                true);

constinit const Family kQwen3Next = {
    .model = {"Qwen3NextForCausalLM", "Qwen3-Next", "qwen3next", "qwen3", "hermes"},
    .model_type = "qwen3_next",
    .rules = {.turns_parts = true},
    .defaults = assume_qwen3_next,
    .read = read_qwen3_5,
    .read_gguf = read_gguf_recurrent,
    .options = qwen3_next_options};

}  // namespace nanovllm
