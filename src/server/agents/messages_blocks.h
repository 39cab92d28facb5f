// The messages and tools of Anthropic's API, as those of chat.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/agents/json_part.h"

namespace nanovllm::server {

// What the model may call, in the order in which it is shown.
class MessageTools {
 public:
  // The field `tools`. Throws ApiError, also where two of them have one name.
  void add_given(const JsonPart& list);
  // In place of the tool that has its name. Throws ApiError where it is no definition of a tool.
  void add(const JsonPart& definition);
  void show(const std::string& name);  // one that was to be loaded later, or was removed
  void remove(const std::string& name);
  Json as_chat_has_them() const;  // those that are shown

 private:
  struct Tool {
    Json function;
    bool is_shown = true;
  };
  void set_shown(const std::string& name, bool is_shown);

  // Those that were removed too, but not shown.
  std::vector<Tool> tools_;
  std::map<std::string, size_t, std::less<>> places_ = {};  // by name
};

// Translates messages one after the other.
class MessageReader {
 public:
  // With `checks_results`, each result has a call before it, and each call one result at most.
  MessageReader(MessageTools& tools, bool checks_results)
      : tools_(tools), checks_results_(checks_results) {}
  // The field `system`.
  void read_system(const JsonPart& system);
  // A message as the schema has it. Throws ApiError.
  void read(const JsonPart& message);

  Json take() { return std::move(messages_); }
  // Whether the last message is the begin of an answer.
  bool ends_with_answer() const;

 private:
  // What the blocks of a message say.
  struct Parts {
    std::string role;
    Json texts = Json::array();  // parts
    std::string thought = {};
    Json calls = Json::array();
    bool has_results = false;
  };
  void read_content(const JsonPart& content, Parts& parts);
  void read_block(const JsonPart& block, Parts& parts);
  void read_call(const JsonPart& block, Parts& parts);
  void read_result(const JsonPart& block, Parts& parts);
  void read_tool_change(const JsonPart& block, bool adds);
  std::string result_text(const JsonPart& content);
  void add(Parts&& parts);

  MessageTools& tools_;
  const bool checks_results_;
  Json messages_ = Json::array();
  std::set<std::string> calls_ = {}, results_ = {};  // ids
};

}  // namespace nanovllm::server
