// What an output must follow as vLLM and OpenAI write it. A schema's properties keep their order,
// for they are generated in it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "nanovllm/sampling_params.h"

namespace nanovllm {

// An object with the fields of StructuredOutputsParams, as vLLM's; `json` and `structural_tag` are
// JSON or its text. Throws Error(kInvalidArgument) for an unknown field or a value of another type.
StructuredOutputsParams read_structured_outputs(const nlohmann::ordered_json& object);
// The same object, of the fields that are set.
nlohmann::ordered_json to_json(const StructuredOutputsParams& params);

// Sets what OpenAI's response_format says, as vLLM and llama.cpp have it: nothing for a text.
// Throws likewise, and where the parameters say already what the output must follow.
void apply_response_format(const nlohmann::ordered_json& format, SamplingParams& params);

}  // namespace nanovllm
