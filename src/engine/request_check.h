// What the engine can serve, and the sentence for what it can't.
#pragma once

#include <cstdint>
#include <vector>

#include "nanovllm/prepare.h"

namespace nanovllm {

// The prompt's token ids. Throws Error(kInvalidArgument), or kUnsupported where a tokenizer is
// needed and there is none, when the request can never be served.
std::vector<int32_t> check_request(const Prompt& prompt, const SamplingParams& params,
                                   const RequestPreparer& engine);

}  // namespace nanovllm
