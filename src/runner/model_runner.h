// From a model folder to a runner that is ready for steps.
#pragma once

#include <memory>

#include "io/model_config.h"
#include "nanovllm/config.h"
#include "nanovllm/llm_engine.h"
#include "runner/runner.h"

namespace nanovllm {

// Loads the weights of `model` on the device that `config` names, sizes the KV cache and fills in
// all of `info`: max_model_len is config's, lowered to what the model was trained for, and
// num_kvcache_blocks what the runner holds. Throws Error: kNotFound, kCorruptData, kUnsupported, or
// kOutOfMemory with the bytes needed and free.
std::unique_ptr<Runner> make_model_runner(const ModelConfig& model, const EngineConfig& config,
                                          EngineInfo& info);

}  // namespace nanovllm
