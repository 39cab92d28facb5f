// From a body of Anthropic's API to one of chat's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/agents/agent_call.h"

namespace nanovllm::server {

struct MessagesRequest {
  Json chat = {};
  bool stream = false;
  AgentOptions options = {};
  std::vector<std::string> ignored_fields = {};  // that nobody knows
};

// `counts`: only the prompt is asked for. Throws ApiError.
MessagesRequest read_messages(std::string_view body, const ServedModel& model, bool counts);

// "prompt is too long: 5 tokens > 4 maximum": words that clients know, and shorten the chat on.
ApiError prompt_too_long(size_t num_tokens, size_t most);

}  // namespace nanovllm::server
