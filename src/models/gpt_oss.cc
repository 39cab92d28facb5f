// gpt-oss (arXiv 2508.10925): a mixture of experts with biases everywhere, attention sinks, windows
// in every second layer and an activation of its own.
#include "models/decoder.h"
#include "models/families.h"

namespace nanovllm {

std::unique_ptr<Model> make_gpt_oss(const ModelContext& context) {
  const bool bias = context.config.attention_bias;
  return make_decoder(context,
                      {.qkv_bias = bias,
                       .output_bias = bias,
                       .sinks = true,
                       .windows = DecoderOptions::Windows::kListedLayers},
                      {.router = "router",
                       .alternates = true,
                       .has_biases = true,
                       .activation = Activation::kClampedSwiglu});
}

}  // namespace nanovllm
