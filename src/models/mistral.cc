// Mistral (arXiv 2310.06825): a Llama whose queries see a sliding window; and Mixtral (arXiv
// 2401.04088), a mixture of experts of it. In GGUF both may go by Llama's name.
#include "models/families.h"

namespace nanovllm {
namespace {

bool has_experts(const GgufFields& fields) {
  return fields.number("expert_count", 0, kMaxSize).value_or(0) > 0;
}

bool is_mistral(const GgufFields& fields) {
  if (fields.architecture() == "mistral3") return true;
  return fields.size("attention.sliding_window", INT32_MAX, 0).value_or(0) > 0 &&
         !has_experts(fields);
}

void read_mistral(const JsonFields& fields, ModelConfig& config) {
  if (!fields.has("sliding_window")) config.sliding_window = 4096;
}

void assume_mixtral(ModelConfig& config) { config.experts.renormalise = true; }

DecoderOptions mistral_options(const ModelConfig&) {
  return {.windows = DecoderOptions::Windows::kAllLayers};
}

DecoderOptions mixtral_options(const ModelConfig&) {
  return {.windows = DecoderOptions::Windows::kAllLayers,
          .experts =
              ExpertOptions{.block = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"}};
}

}  // namespace

constinit const Family kMistral = {
    .model = {"MistralForCausalLM", "Mistral", "llama, mistral3", "mistral", "mistral"},
    .model_type = "mistral",
    .owns = is_mistral,
    .gguf_turns_neighbours = true,
    .read = read_mistral,
    .options = mistral_options};

constinit const Family kMixtral = {
    .model = {"MixtralForCausalLM", "Mixtral", "llama", "", "mistral"},
    .model_type = "mixtral",
    .owns = has_experts,
    .gguf_turns_neighbours = true,
    .defaults = assume_mixtral,
    .options = mixtral_options};

}  // namespace nanovllm
