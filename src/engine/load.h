// From a model folder to an engine.
#pragma once

#include <memory>
#include <string>

#include "engine/engine_core.h"

namespace nanovllm {

// Loads a Hugging Face model folder or a GGUF file. Throws Error when it is missing, corrupt,
// unsupported or does not fit.
std::unique_ptr<EngineCore> load_engine_core(const std::string& model_dir,
                                             const EngineConfig& config);

}  // namespace nanovllm
