// The decoder that Llama and its descendants share: embedding, layers of attention and MLP with
// RMSNorm before each, a last norm and the head. A family says what it has besides.
#pragma once

#include <functional>
#include <memory>

#include "models/layers.h"
#include "models/model.h"

namespace nanovllm {

struct DecoderOptions {
  bool qk_norm = false;
  bool qkv_bias = false;
  bool output_bias = false;  // of attention's output projection
  bool mlp_bias = false;
  enum class Windows { kNone, kAllLayers, kListedLayers } windows = Windows::kNone;
};

// Throws Error as make_model does.
std::unique_ptr<Model> make_decoder(const ModelContext& context, const DecoderOptions& options);

}  // namespace nanovllm
