// Granite 3 (ibm.com/granite): a Llama with factors for embeddings, scores, what each block adds,
// and logits.
#include "models/decoder.h"
#include "models/families.h"

namespace nanovllm {

std::unique_ptr<Model> make_granite(const ModelContext& context) {
  const ModelConfig& config = context.config;
  return make_decoder(context, {.qkv_bias = config.attention_bias,
                                .output_bias = config.attention_bias,
                                .mlp_bias = config.mlp_bias,
                                .embedding_scale = config.embedding_scale,
                                .query_scalar = config.query_scalar});
}

}  // namespace nanovllm
