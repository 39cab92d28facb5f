// The items of a request of /v1/responses as the messages of a chat.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/request_fields.h"

namespace nanovllm::server {

// A value in a body, and where it stands: "input[2].content". What it refuses, it names so.
class JsonPart {
 public:
  JsonPart(const Json& json, std::string where) : json_(&json), where_(std::move(where)) {}

  const Json& json() const { return *json_; }
  const std::string& where() const { return where_; }
  size_t size() const { return json_->size(); }  // of a list

  // Throws ApiError where an item of the list is no object.
  JsonPart item(size_t index) const;
  // Members of an object; none = absent or null. Throw ApiError for those of other types.
  std::optional<JsonPart> find(const char* name) const;
  std::optional<std::string> text(const char* name) const;
  std::optional<JsonPart> object(const char* name) const;
  // The same where they have to be given: a text that is not empty, and a list, which may be
  // absent.
  std::string given(const char* name) const;
  JsonPart list(const char* name) const;

 private:
  const Json* json_;
  std::string where_;
};

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
  Json& assistant(const char* gets);

  std::vector<std::string>& left_out_;
  Json messages_ = Json::array();
  bool has_turns_ = false;
  std::set<std::string> open_calls_ = {}, answered_calls_ = {};  // ids
};

}  // namespace nanovllm::server
