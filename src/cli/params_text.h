// Sampling parameters as a chat shows them.
#pragma once

#include <string>

#include "engine/sampling_table.h"

namespace nanovllm::cli {

// As /params takes it: numbers and booleans, "null" for none, texts, lists and objects as JSON.
std::string value_text(const SamplingParams& params, const Parameter& parameter);

// "name=value ...": what people change most, and whatever else is not SamplingParams' own default.
std::string params_text(const SamplingParams& params);

}  // namespace nanovllm::cli
