// From a model folder to a runner that is ready for steps.
#pragma once

#include <memory>

#include "io/model_config.h"
#include "nanovllm/config.h"
#include "nanovllm/llm_engine.h"
#include "ops/communicator.h"
#include "runner/runner.h"

namespace nanovllm {

// Loads one rank's share of the weights of `model` on the device that `config` names, sizes the KV
// cache and fills in all of `info`: max_model_len is config's, lowered to what the model was
// trained for, and num_kvcache_blocks what the runner holds. Throws Error: kNotFound, kCorruptData,
// kUnsupported, or kOutOfMemory with the bytes needed and free. With a group, every rank's thread
// calls this at once and all runners get the same number of blocks; the group outlives them. `info`
// speaks of this rank.
std::unique_ptr<Runner> make_model_runner(const ModelConfig& model, const EngineConfig& config,
                                          EngineInfo& info, CommunicatorGroup* group = nullptr,
                                          int rank = 0);

}  // namespace nanovllm
