// From the messages of a chat to the text of a prompt, as vLLM and transformers make it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "server/openai/request_fields.h"
#include "server/transcript/call_tags.h"

namespace nanovllm::server {

struct ChatPrompt {
  std::string text;
  std::string role;          // whose turn the model goes on with
  std::string last_content;  // of the last message, where it is of that role
  bool add_special_tokens = false;
  std::unique_ptr<const ToolTypes> tools = {};  // null = no calls are looked for
  // What may be called and what must be; none = no calls are looked for.
  std::optional<CallRules> calls = {};
  bool is_call_named = false;    // the one that must come
  bool are_calls_fewer = false;  // than the tools that the prompt tells of
  bool short_call_ids = false;   // the template takes no other ids of calls
};

// Reads the fields that say what the prompt is. Throws ApiError.
ChatPrompt render_chat(const RequestFields& fields, const ServedModel& model);

}  // namespace nanovllm::server
