#include "server/agents/responses_input.h"

#include <algorithm>
#include <utility>

#include "io/json.h"
#include "text/chat_messages.h"

namespace nanovllm::server {
namespace {

// What servers did on their own, and what only they can read.
constexpr std::string_view kPassedOver[] = {
    "web_search_call",  "file_search_call", "image_generation_call",
    "local_shell_call", "tool_search_call", "tool_search_output",
    "compaction"};

std::string words_of(const JsonPart& content) {
  try {
    return text::text_of_content(content.json(), content.where());
  } catch (const Error& error) {
    throw ApiError(400, error.what(), content.where());
  }
}

// Absent is as good as null only where nothing has to be said.
std::string words_of(const JsonPart& item, const char* name) {
  const auto part = item.find(name);
  if (!part && !item.json().contains(name)) {
    item.refuse(".{} must be given.", name);
  }
  return part ? words_of(*part) : "";
}

// The texts of {type, text} parts, whatever the types; "" where there are none.
std::string thought_in(const JsonPart& item, const char* name) {
  const JsonPart parts = item.list(name);
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += "\n";
    text += parts.item(i).text("text").value_or("");
  }
  return text;
}

bool is_blank_text(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

}  // namespace

std::string flat_tool_name(const std::string& space, const std::string& name) {
  return space.empty() ? name : space + "__" + name;
}

void note_left_out(const JsonPart& part, std::string_view type, std::vector<std::string>& list) {
  constexpr size_t kMost = 20;  // in a line of a log
  if (list.size() < kMost) list.push_back(fmt::format("{} ({})", part.where(), printable(type)));
}

void ResponsesDialogue::add(const JsonPart& item) {
  const auto type = item.text("type");
  if (!type && !item.find("role")) {
    item.refuse(" has neither a type nor a role.");
  }
  if (!type || *type == "message") {
    add_message(item);
  } else if (*type == "reasoning") {
    add_reasoning(item);
  } else if (*type == "function_call" || *type == "custom_tool_call") {
    add_call(item, *type == "custom_tool_call");
  } else if (*type == "function_call_output" || *type == "custom_tool_call_output") {
    add_output(item);
  } else if (*type == "item_reference") {
    throw ApiError(404,
                   fmt::format("Item with id '{}' not found: this server stores no items. Send the "
                               "item itself.",
                               printable(item.text("id").value_or(""))),
                   item.where());
  } else if (std::ranges::find(kPassedOver, *type) != std::end(kPassedOver)) {
    note_left_out(item, *type, left_out_);
  } else {
    item.refuse(" is of the type \"{}\", which is not known.", printable(*type));
  }
}

void ResponsesDialogue::say(const char* role, std::string text) {
  has_turns_ = has_turns_ || std::string_view(role) != "system";
  messages_.push_back({{"role", role}, {"content", std::move(text)}});
}

// The last message, if what comes next is of the same turn, else a new one. Calls wait for their
// outputs, which have to come right behind them: what is said beside them is of their turn.
Json& ResponsesDialogue::assistant(const char* gets) {
  const bool goes_on =
      !messages_.empty() && messages_.back()["role"] == "assistant" &&
      (gets == std::string_view("tool_calls") || messages_.back().contains("tool_calls") ||
       messages_.back()["content"].is_null());
  if (!goes_on) messages_.push_back({{"role", "assistant"}, {"content", nullptr}});
  has_turns_ = true;
  return messages_.back();
}

void ResponsesDialogue::add_message(const JsonPart& item) {
  const std::string role = item.given("role");
  std::string text = words_of(item, "content");
  if (role == "user") {
    ask(text);
  } else if (role == "system" || role == "developer") {
    // Templates drop the role "developer", or know it at the head alone.
    instruct(text);
  } else if (role == "assistant") {
    Json& content = assistant("content")["content"];
    if (content.is_null()) content = "";
    content.get_ref<std::string&>() += text;
  } else {
    item.find("role")->refuse(" must be one of user, assistant, system and developer, got \"{}\".",
                              printable(role));
  }
}

void ResponsesDialogue::add_reasoning(const JsonPart& item) {
  std::string thought = thought_in(item, "content");
  if (thought.empty()) thought = thought_in(item, "summary");
  if (is_blank_text(thought)) return;
  Json& message = assistant("reasoning_content");
  Json& before = message["reasoning_content"];
  if (before.is_null()) {
    before = std::move(thought);
  } else {
    before.get_ref<std::string&>() += "\n" + thought;
  }
}

void ResponsesDialogue::add_call(const JsonPart& item, bool is_custom) {
  const std::string id = item.given("call_id"), name = item.given("name");
  const std::string space = item.text("namespace").value_or("");
  const std::string given = item.text(is_custom ? "input" : "arguments").value_or("");
  open_calls_.insert(id);
  answered_calls_.erase(id);  // some clients count anew in each turn
  assistant("tool_calls")["tool_calls"].push_back(
      {{"id", id},
       {"type", "function"},
       {"function",
        {{"name", flat_tool_name(space, name)},
         {"arguments", is_custom ? Json({{"input", given}}).dump() : given}}}});
}

// An image that a tool returned is sent again with each request of its session, none of which could
// be answered then: the model is told in words.
std::string ResponsesDialogue::words_of_output(const JsonPart& item) {
  const auto given = item.find("output");
  if (!given || !given->json().is_array()) return words_of(item, "output");
  Json output = given->json();
  for (size_t i = 0; i < given->size(); ++i) {
    const Json type = output[i].is_object() ? output[i].value("type", Json()) : Json();
    if (type != "input_image" && type != "input_file") continue;
    note_left_out(given->item(i), type.get<std::string>(), left_out_);
    output[i] = fmt::format("({} left out: this model reads text alone)",
                            type == "input_image" ? "image" : "file");
  }
  return words_of({output, given->where()});
}

void ResponsesDialogue::add_output(const JsonPart& item) {
  const std::string id = item.given("call_id");
  if (answered_calls_.contains(id)) {
    item.refuse(" is a second output of the call \"{}\"; send one of each call.", printable(id));
  }
  if (open_calls_.erase(id) == 0) {
    item.refuse(" is the output of the call \"{}\", which is not among the items before it.",
                printable(id));
  }
  answered_calls_.insert(id);
  messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", words_of_output(item)}});
}

}  // namespace nanovllm::server
