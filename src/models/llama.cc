// Llama 2 and 3 (arXiv 2307.09288, 2407.21783) with their optional biases, and Mistral (arXiv
// 2310.06825), which is a Llama whose queries see a sliding window.
#include "models/decoder.h"
#include "models/families.h"

namespace nanovllm {

std::unique_ptr<Model> make_llama(const ModelContext& context) {
  return make_decoder(context, {.qkv_bias = context.config.attention_bias,
                                .output_bias = context.config.attention_bias,
                                .mlp_bias = context.config.mlp_bias});
}

std::unique_ptr<Model> make_mistral(const ModelContext& context) {
  return make_decoder(context, {.windows = DecoderOptions::Windows::kAllLayers});
}

}  // namespace nanovllm
