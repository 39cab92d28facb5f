// Requests and results as JSON lines, for the command line and the server.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "nanovllm/llm_engine.h"

namespace nanovllm {

// Sets the fields of `params` that the object names. Which there are, and what null is for each,
// says engine/sampling_table.h. Throws Error(kInvalidArgument) for an unknown name or a value of
// the wrong type. Ranges are SamplingParams::validate's business.
void update_sampling_params(SamplingParams& params, const nlohmann::json& object);

// An object token id -> {logprob, rank, decoded_token}, as in vLLM.
nlohmann::ordered_json to_json(const PositionLogprobs& position);

struct RequestLine {
  Prompt prompt;
  SamplingParams params;
};

// One line {"prompt": str} or {"prompt_token_ids": [int]} with optional "sampling_params". Throws
// Error(kInvalidArgument), or Error(kCorruptData) where it is not JSON, saying what is wrong with
// it. `number` is the line's in its file, from 1.
RequestLine parse_request_line(const std::string& line, const SamplingParams& defaults,
                               int64_t number = 1);

// index, text, token_ids, finish_reason, num_prompt_tokens, num_cached_tokens; stop_reason,
// logprobs and prompt_logprobs where the output has them (per position an object token id ->
// {logprob, rank, decoded_token} as in vLLM, null for the first prompt token). With n > 1 each
// completion's fields are in the list "outputs" instead.
nlohmann::ordered_json result_line(int64_t index, const RequestOutput& output);

}  // namespace nanovllm
