// Requests and results as JSON lines, for the command line and the server.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "nanovllm/llm_engine.h"

namespace nanovllm {

// Sets the fields of `params` that the object names. Which there are, and what null is for each,
// says engine/sampling_table.h. Throws Error(kInvalidArgument) for an unknown name or a value of
// the wrong type. Ranges are SamplingParams::validate's business.
void update_sampling_params(SamplingParams& params, const nlohmann::ordered_json& object);

// An object token id -> {logprob, rank, decoded_token}, as in vLLM.
nlohmann::ordered_json to_json(const PositionLogprobs& position);

struct RequestLine {
  Prompt prompt = {};
  SamplingParams params = {};
  std::optional<std::string> custom_id = {};  // whoever sent it knows it by
  // A chat instead of a prompt, for RequestPreparer::prepare_chat; null = it is a prompt.
  nlohmann::ordered_json messages = nullptr;
  nlohmann::ordered_json tools = nullptr;  // null = none
  nlohmann::ordered_json chat_template_kwargs = nlohmann::ordered_json::object();
};

// One line {"prompt": str}, {"prompt_token_ids": [int]} or {"messages": [{"role", "content"}]}, the
// last with optional "tools" and "chat_template_kwargs", all with optional "sampling_params",
// "response_format" (see apply_response_format) and "custom_id". Throws Error(kInvalidArgument), or
// Error(kCorruptData) where it is not JSON, saying what is wrong with it. `number` is the line's in
// its file, from 1.
RequestLine parse_request_line(const std::string& line, const SamplingParams& defaults,
                               int64_t number = 1);

// Of any line that has one, be the rest of it what it may.
std::optional<std::string> custom_id_of(const std::string& line);

// index, custom_id where there is one, text, token_ids, finish_reason, num_prompt_tokens,
// num_cached_tokens; stop_reason, logprobs and prompt_logprobs where the output has them (per
// position an object token id -> {logprob, rank, decoded_token} as in vLLM, null for the first
// prompt token). With n > 1 each completion's fields are in the list "outputs" instead.
nlohmann::ordered_json result_line(int64_t index, const RequestOutput& output,
                                   const std::optional<std::string>& custom_id = {});

}  // namespace nanovllm
