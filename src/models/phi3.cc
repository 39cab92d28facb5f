// Phi-3 (arXiv 2404.14219), Phi-3.5 and Phi-4: one matrix for q, k and v and one for gate and up,
// LongRoPE, and in Phi-4-mini heads of which a part turns.
#include "models/families.h"

namespace nanovllm {
namespace {

void assume_phi3(ModelConfig& config) {
  config.rms_norm_eps = 1e-5f;
  config.rope_scaling.original_max_position_embeddings = 4096;
}

DecoderOptions phi3_options(const ModelConfig&) {
  return {.fused_qkv = true, .fused_gate_up = true, .windows = DecoderOptions::Windows::kAllLayers};
}

}  // namespace

constinit const Family kPhi3 = {.model = {"Phi3ForCausalLM", "Phi-3, Phi-4", "phi3", "", ""},
                                .model_type = "phi3",
                                .rules = {.turns_parts = true, .yarn_is_longrope = true},
                                .defaults = assume_phi3,
                                .options = phi3_options};

}  // namespace nanovllm
