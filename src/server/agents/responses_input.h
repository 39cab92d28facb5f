// The items of a request of /v1/responses as the messages of a chat.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/agents/json_part.h"

namespace nanovllm::server {

// As vLLM names it.
std::string flat_tool_name(const std::string& space, const std::string& name);

// Adds what the model does not see to the list of it, for the log; beyond some of them, nothing.
void note_left_out(const JsonPart& part, std::string_view type, std::vector<std::string>& list);

// Reasoning, a message and calls that follow each other are one message of the assistant, as the
// model said them.
class ResponsesDialogue {
 public:
  // What the model does not see is added to `left_out`.
  explicit ResponsesDialogue(std::vector<std::string>& left_out) : left_out_(left_out) {}

  void instruct(const std::string& text) { say("system", text); }
  void ask(const std::string& text) { say("user", text); }
  // Throws ApiError for what is no item, or does not fit to those before.
  void add(const JsonPart& item);

  bool has_turns() const { return has_turns_; }  // besides instructions
  Json take() { return std::move(messages_); }

 private:
  void say(const char* role, std::string text);
  void add_message(const JsonPart& item);
  void add_reasoning(const JsonPart& item);
  void add_call(const JsonPart& item, bool is_custom);
  void add_output(const JsonPart& item);
  std::string words_of_output(const JsonPart& item);
  Json& assistant(const char* gets);

  std::vector<std::string>& left_out_;
  Json messages_ = Json::array();
  bool has_turns_ = false;
  std::set<std::string> open_calls_ = {}, answered_calls_ = {};  // ids
};

}  // namespace nanovllm::server
