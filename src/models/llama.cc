// Llama 2 and 3 (arXiv 2307.09288, 2407.21783) with their optional biases.
#include "models/families.h"

namespace nanovllm {
namespace {

DecoderOptions llama_options(const ModelConfig& config) {
  return {.qkv_bias = config.attention_bias,
          .output_bias = config.attention_bias,
          .mlp_bias = config.mlp_bias};
}

}  // namespace

constinit const Family kLlama = {
    .model = {"LlamaForCausalLM", "Llama 2, Llama 3", "llama", "", "llama3_json"},
    .model_type = "llama",
    .gguf_turns_neighbours = true,
    .options = llama_options};

}  // namespace nanovllm
