// Families whose feed-forward blocks are mixtures of experts: Mixtral (arXiv 2401.04088), Qwen2-MoE
// (arXiv 2407.10671), with a shared expert that has a gate, Qwen3-MoE (arXiv 2505.09388) and
// gpt-oss (arXiv 2508.10925), with biases everywhere, attention sinks and an activation of its own.
#include "base/check.h"
#include "models/decoder.h"
#include "models/families.h"

namespace nanovllm {
namespace {

std::unique_ptr<Model> make_mixture(const ModelContext& context, DecoderOptions options,
                                    const ExpertOptions& experts) {
  if (context.config.experts.num == 0) {
    throw_error(ErrorCode::kCorruptData, "{}: the number of experts is missing",
                context.config.config_path);
  }
  options.experts = experts;
  return make_decoder(context, options);
}

}  // namespace

std::unique_ptr<Model> make_gpt_oss(const ModelContext& context) {
  const std::string plain = "model.layers.0.mlp.experts.gate_up_proj";
  if (context.weights.contains(plain)) {
    throw_error(ErrorCode::kUnsupported,
                "{}: {} is not MXFP4, which is the only format of gpt-oss's experts that is "
                "supported",
                context.config.model_dir, plain);
  }
  const bool bias = context.config.attention_bias;
  return make_mixture(
      context,
      {.qkv_bias = bias,
       .output_bias = bias,
       .sinks = true,
       .windows = DecoderOptions::Windows::kListedLayers},
      {.router = "router", .has_biases = true, .activation = Activation::kClampedSwiglu});
}

std::unique_ptr<Model> make_mixtral(const ModelContext& context) {
  return make_mixture(context, {.windows = DecoderOptions::Windows::kAllLayers},
                      {.block = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"});
}

std::unique_ptr<Model> make_qwen2_moe(const ModelContext& context) {
  return make_mixture(context,
                      {.qkv_bias = context.config.attention_bias,
                       .windows = DecoderOptions::Windows::kListedLayers},
                      {.has_shared_gate = true});
}

std::unique_ptr<Model> make_qwen3_moe(const ModelContext& context) {
  return make_mixture(context,
                      {.qk_norm = QkNorm::kEachHead,
                       .qkv_bias = context.config.attention_bias,
                       .output_bias = context.config.attention_bias,
                       .windows = DecoderOptions::Windows::kAllLayers},
                      {});
}

}  // namespace nanovllm
