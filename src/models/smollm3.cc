// SmolLM3 (huggingface.co/blog/smollm3): a Llama whose heads do not turn in every fourth layer.
#include "models/decoder.h"
#include "models/families.h"

namespace nanovllm {

std::unique_ptr<Model> make_smollm3(const ModelContext& context) {
  const ModelConfig& config = context.config;
  return make_decoder(context, {.qkv_bias = config.attention_bias,
                                .output_bias = config.attention_bias,
                                .mlp_bias = config.mlp_bias,
                                .windows = DecoderOptions::Windows::kListedLayers});
}

}  // namespace nanovllm
