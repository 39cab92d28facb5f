// From a prompt to a request for an engine, and what is refused on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/protocol.h"

namespace nanovllm::server {

// The code of errors about prompts that are too long.
inline constexpr const char* kContextExceeded = "context_length_exceeded";

// No text of as many bytes has fewer; 0 = that is not known.
size_t least_num_tokens(std::string_view text, const ServedModel& model);
// Throws ApiError for a text that has too many tokens whatever they are.
void check_fits(std::string_view text, const ServedModel& model);
// Throws ApiError for a prompt of more tokens than the context has.
void check_length(size_t num_tokens, const ServedModel& model);
// Throws ApiError where there is no tokenizer, and for a text that has too many tokens.
std::vector<int32_t> encode_prompt(const std::string& text, bool add_special_tokens,
                                   const ServedModel& model);
// `constraint`: the client's name of structured_outputs. Throws ApiError for a prompt that can't be
// served.
AddRequest prepare_request(const std::vector<int32_t>& token_ids, const SamplingParams& params,
                           const ServedModel& model, const char* constraint);

}  // namespace nanovllm::server
