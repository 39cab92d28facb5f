// What a model is, read from its files.
#pragma once

#include <string>

#include "io/model_config.h"

namespace nanovllm {

// Reads config.json in both layouts: top-level rope_theta/rope_scaling/torch_dtype, and
// rope_parameters/dtype of transformers 5; of a multimodal model, the text part. Or the metadata of
// a GGUF file. A size that config.json does not give is left 0: make_model refuses it, after the
// architecture.
// Throws Error: kNotFound (folder or config.json), kCorruptData (bad JSON, field of the wrong
// type or out of range), kUnsupported (an unknown dtype, a quantisation that can't be decoded, a
// GGUF file of no known family).
ModelConfig load_model_config(const std::string& model);

// Whether make_model knows config.architecture.
bool is_supported(const ModelConfig& config);

}  // namespace nanovllm
