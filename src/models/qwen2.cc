// Qwen2 and Qwen2.5 (arXiv 2407.10671): always biases on q, k and v, never elsewhere, whatever
// config.json says.
#include "models/decoder.h"
#include "models/families.h"

namespace nanovllm {

std::unique_ptr<Model> make_qwen2(const ModelContext& context) {
  return make_decoder(context,
                      {.qkv_bias = true, .windows = DecoderOptions::Windows::kListedLayers});
}

}  // namespace nanovllm
