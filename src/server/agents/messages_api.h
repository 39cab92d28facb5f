// Anthropic's API.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/openai/protocol.h"

namespace nanovllm::server {

// As parse_chat() and tokenize_body().
std::unique_ptr<ApiCall> parse_messages(std::string_view body, const ServedModel& model,
                                        const std::string& id);
std::string count_tokens_body(std::string_view body, const ServedModel& model);
// {"type": "error", "error": {type, message}}
std::string messages_error_body(int status, const ErrorWords& error);

}  // namespace nanovllm::server
