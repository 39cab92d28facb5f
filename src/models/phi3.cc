// Phi-3 (arXiv 2404.14219), Phi-3.5 and Phi-4: one matrix for q, k and v and one for gate and up,
// LongRoPE, and in Phi-4-mini heads of which a part turns.
#include "models/decoder.h"
#include "models/families.h"

namespace nanovllm {

std::unique_ptr<Model> make_phi3(const ModelContext& context) {
  return make_decoder(
      context,
      {.fused_qkv = true, .fused_gate_up = true, .windows = DecoderOptions::Windows::kAllLayers});
}

}  // namespace nanovllm
