// Sampling parameters as a chat shows them.
#pragma once

#include <string>

#include "nanovllm/sampling_params.h"

namespace nanovllm::cli {

// "name=value ...": what people change most, and whatever else is not SamplingParams' own default;
// texts, lists and objects as JSON.
std::string params_text(const SamplingParams& params);

}  // namespace nanovllm::cli
