// `--log-steps`: what each step computed, one line a step.
#pragma once

#include "nanovllm/llm_engine.h"

namespace nanovllm::cli {

// Prints to stderr what the last step did, for example
//   step 3: 2 prefill (300 tokens), 5 decode; blocks 12/64; 0:0+256 1:128+44(cached 128) | 2 3 4 5
//   6
// A prefill shows as id:computed+new, a decode as its id; a completion of n > 1 as id.index.
void log_step(int64_t number, const LLMEngine& engine);

}  // namespace nanovllm::cli
