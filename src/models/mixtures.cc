// Families whose feed-forward blocks are mixtures of experts: Mixtral (arXiv 2401.04088), Qwen2-MoE
// (arXiv 2407.10671), with a shared expert that has a gate, Qwen3-MoE (arXiv 2505.09388), OLMoE
// (arXiv 2409.02060), and GLM-4.5 (arXiv 2508.06471), whose scores are sigmoids and whose first
// layers are dense.
#include "models/decoder.h"
#include "models/families.h"

namespace nanovllm {

std::unique_ptr<Model> make_glm4_moe(const ModelContext& context) {
  return make_decoder(
      context,
      {.qk_norm = context.config.qk_norm ? QkNorm::kEachHead : QkNorm::kNone,
       .qkv_bias = context.config.attention_bias},
      {.shared = "shared_experts", .has_correction = true, .score = Routing::Score::kSigmoid});
}

std::unique_ptr<Model> make_mixtral(const ModelContext& context) {
  return make_decoder(context, {.windows = DecoderOptions::Windows::kAllLayers},
                      {.block = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2"});
}

std::unique_ptr<Model> make_olmoe(const ModelContext& context) {
  const bool bias = context.config.attention_bias;
  return make_decoder(context,
                      {.qk_norm = QkNorm::kAllHeads, .qkv_bias = bias, .output_bias = bias}, {});
}

std::unique_ptr<Model> make_qwen2_moe(const ModelContext& context) {
  return make_decoder(context,
                      {.qkv_bias = context.config.attention_bias,
                       .windows = DecoderOptions::Windows::kListedLayers},
                      {.has_shared_gate = true});
}

std::unique_ptr<Model> make_qwen3_moe(const ModelContext& context) {
  return make_decoder(context,
                      {.qk_norm = QkNorm::kEachHead,
                       .qkv_bias = context.config.attention_bias,
                       .output_bias = context.config.attention_bias,
                       .windows = DecoderOptions::Windows::kAllLayers},
                      {});
}

}  // namespace nanovllm
