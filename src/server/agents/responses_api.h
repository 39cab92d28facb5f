// OpenAI's newer API: /v1/responses, as Codex and agents' libraries speak it. Nothing is stored.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/openai/protocol.h"

namespace nanovllm::server {

// `id` is the request's, for the answer's own. Throws ApiError.
std::unique_ptr<ApiCall> parse_responses(std::string_view body, const ServedModel& model,
                                         const std::string& id);

// {"error": {message, type, param, code}}, whose code may be a word.
std::string responses_error_body(int status, const ErrorWords& error);

inline constexpr std::string_view kResponsesPath = "/v1/responses/";
// Why there is nothing at a path behind it: a sentence.
std::string missing_response(std::string_view path);

}  // namespace nanovllm::server
