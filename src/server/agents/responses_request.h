// From a body of /v1/responses to the body of a chat that asks for the same.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/request_fields.h"

namespace nanovllm::server {

inline constexpr const char* kResponsesRequest = "ResponsesRequest";  // the body's schema

// What a tool is to the client; the model knows all of them as functions.
struct ResponsesTool {
  bool is_custom = false;  // its input is a text, the model's function has it as `input`
  std::string name = {};
  std::string space = {};  // the namespace; empty = none
  bool operator==(const ResponsesTool&) const = default;
};

struct ResponsesRequest {
  Json chat = Json::object();
  const char* constraint = "structured_outputs";  // see AgentOptions
  std::optional<int64_t> max_output_tokens = {};
  std::optional<int> num_top_logprobs = {};                      // none = no log-probabilities
  std::map<std::string, ResponsesTool, std::less<>> tools = {};  // by the model's name of them
  Json shown_tools = Json::array();        // as the client gave them, without what is not known
  std::vector<std::string> left_out = {};  // what the model does not see
};

// Nothing is looked up, rendered or remembered. Throws ApiError.
ResponsesRequest translate_responses(const RequestFields& fields);

}  // namespace nanovllm::server
