// Qwen3 (arXiv 2505.09388): query and key heads are normalised before they are turned, and
// head_dim is independent of hidden_size.
#include "models/decoder.h"
#include "models/families.h"

namespace nanovllm {

std::unique_ptr<Model> make_qwen3(const ModelContext& context) {
  return make_decoder(context, {.qk_norm = QkNorm::kEachHead,
                                .qkv_bias = context.config.attention_bias,
                                .output_bias = context.config.attention_bias,
                                .windows = DecoderOptions::Windows::kListedLayers});
}

}  // namespace nanovllm
