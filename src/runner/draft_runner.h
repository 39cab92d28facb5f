// The runner of a model that guesses what another one draws.
#pragma once

#include <memory>

#include "base/progress.h"
#include "io/model_config.h"
#include "nanovllm/config.h"
#include "runner/model_runner.h"

namespace nanovllm {

// Before it is loaded. Throws Error(kUnsupported) where layers are recurrent: they would need
// states of their own; and Error(kInvalidArgument) where max_model_len is more than it was made
// for.
void check_draft_model(const ModelConfig& draft, const ModelConfig& target,
                       const EngineConfig& config, int max_model_len);

// Loads the draft model of a target, which `config` is about, whole: it is there once, whatever the
// target's ranks. All its layers are in one group, which keeps all tokens. Its KV cache is to be
// allocated with num_draft_blocks() blocks, once those of the target are known. It sees
// max_model_len tokens, 0 = as many as both models were made for. Throws what make_model_runner
// does.
std::unique_ptr<ModelRunner> make_draft_runner(const ModelConfig& draft, const ModelConfig& target,
                                               const EngineConfig& config, int max_model_len,
                                               Progress* progress = nullptr);

}  // namespace nanovllm
