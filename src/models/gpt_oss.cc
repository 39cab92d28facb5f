// gpt-oss (arXiv 2508.10925): a mixture of experts with biases everywhere, attention sinks, windows
// in every second layer and an activation of its own.
#include "base/check.h"
#include "models/decoder.h"
#include "models/families.h"

namespace nanovllm {

std::unique_ptr<Model> make_gpt_oss(const ModelContext& context) {
  const std::string plain = "model.layers.0.mlp.experts.gate_up_proj";
  if (context.weights.contains(plain)) {
    throw_error(ErrorCode::kUnsupported,
                "{}: {} is not MXFP4, which is the only format of gpt-oss's experts that is "
                "supported",
                context.config.model_dir, plain);
  }
  const bool bias = context.config.attention_bias;
  return make_decoder(
      context,
      {.qkv_bias = bias,
       .output_bias = bias,
       .sinks = true,
       .windows = DecoderOptions::Windows::kListedLayers},
      {.router = "router", .has_biases = true, .activation = Activation::kClampedSwiglu});
}

}  // namespace nanovllm
