#include "server/agents/messages_blocks.h"

#include <algorithm>

#include "io/json.h"

namespace nanovllm::server {
namespace {

// A block of a client that tells its server which version it is: other words in each conversation,
// so that no prompt would begin as another one.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header";

// Blocks, and the roles whose messages have them; "" = all.
constexpr std::pair<std::string_view, std::string_view> kBlocks[] = {
    {"text", ""},
    {"thinking", "assistant"},
    {"redacted_thinking", "assistant"},
    {"tool_use", "assistant"},
    {"tool_result", "user"},
    {"tool_addition", "system"},
    {"tool_removal", "system"},
};

bool is_no_text(const Json& content) {
  return content.is_string() && content.get_ref<const std::string&>().empty();
}

Json text_part(std::string text) { return {{"type", "text"}, {"text", std::move(text)}}; }

// What other servers' tools did is told in the texts around it.
bool is_of_other_servers(std::string_view type) {
  return type == "server_tool_use" || type == "mcp_tool_use" ||
         (type != "tool_result" && type.ends_with("_tool_result"));
}

void check_type(const JsonPart& block, const std::string& type, const std::string& role) {
  if (type == "image" || type == "document") {  // clients that find it by this place take it out
    block.refuse(".{0}: this model reads text alone; leave the {0} out.", type);
  }
  const auto* known =
      std::ranges::find_if(kBlocks, [&](const auto& one) { return one.first == type; });
  if (known == std::end(kBlocks)) {
    block.refuse(" is a block of the type \"{}\", which is not known here.", printable(type));
  }
  if (!known->second.empty() && known->second != role) {
    block.refuse(" is a block of the type \"{}\", which belongs into messages of the role {}.",
                 type, known->second);
  }
}

std::string name_of_reference(const JsonPart& reference) {
  return reference.given_text(reference.find("tool_name") ? "tool_name" : "name");
}

}  // namespace

void MessageTools::add_given(const JsonPart& list) {
  for (size_t i = 0; i < list.size(); ++i) {
    const JsonPart tool = list.item(i);
    if (const auto name = tool.text("name"); name && places_.contains(*name)) {
      tool.refuse(".name is {}, which another tool before has too.", shown(*name));
    }
    add(tool);
    const auto defers = tool.find("defer_loading");
    tools_.back().is_shown = !defers || defers->json() != true;
  }
}

void MessageTools::add(const JsonPart& definition) {
  if (const auto type = definition.find("type"); type && type->json() != "custom") {
    definition.refuse(
        " is of the type {}, a tool of Anthropic's servers, which are not here; leave it out.",
        shown(type->json()));
  }
  const std::string name = definition.given("name");
  const JsonPart schema = definition.given_object("input_schema");
  if (const auto type = schema.find("type"); type && type->json() != "object") {
    type->refuse(" must be \"object\", got {}.", shown(type->json()));
  }
  Json parameters = schema.json();
  parameters["type"] = "object";
  Json function = {{"name", name}, {"parameters", std::move(parameters)}};
  if (const auto description = definition.text("description")) {
    function["description"] = *description;
  }
  if (const auto strict = definition.find("strict"); strict && strict->json() == true) {
    function["strict"] = true;
  }
  set_shown(name, false);
  places_[name] = tools_.size();
  tools_.push_back({std::move(function)});
}

void MessageTools::show(const std::string& name) { set_shown(name, true); }
void MessageTools::remove(const std::string& name) { set_shown(name, false); }

void MessageTools::set_shown(const std::string& name, bool is_shown) {
  const auto found = places_.find(name);
  if (found != places_.end()) tools_[found->second].is_shown = is_shown;
}

Json MessageTools::as_chat_has_them() const {
  Json list = Json::array();
  for (const Tool& tool : tools_) {
    if (tool.is_shown) list.push_back({{"type", "function"}, {"function", tool.function}});
  }
  return list;
}

void MessageReader::read_system(const JsonPart& system) {
  Parts parts = {.role = "system"};
  read_content(system, parts);
  add(std::move(parts));
}

void MessageReader::read(const JsonPart& message) {
  Parts parts = {.role = message.json()["role"].get<std::string>()};
  read_content({message.json()["content"], message.where() + ".content"}, parts);
  add(std::move(parts));
}

void MessageReader::read_content(const JsonPart& content, Parts& parts) {
  if (content.json().is_string()) {
    parts.texts.push_back(text_part(content.json().get<std::string>()));
    return;
  }
  if (!content.json().is_array()) {
    content.refuse(" must be a text or a list of blocks, got {}.", shown(content.json()));
  }
  for (size_t i = 0; i < content.size(); ++i) read_block(content.item(i), parts);
}

void MessageReader::read_block(const JsonPart& block, Parts& parts) {
  const std::string type = block.given("type");
  if (is_of_other_servers(type)) return;
  check_type(block, type, parts.role);
  if (type == "text") {
    std::string text = block.given_text("text");
    if (parts.role == "system" && text.starts_with(kBillingHeader)) return;
    parts.texts.push_back(text_part(std::move(text)));
  } else if (type == "thinking") {
    parts.thought += block.given_text("thinking");
  } else if (type == "tool_use") {
    read_call(block, parts);
  } else if (type == "tool_result") {
    read_result(block, parts);
  } else if (type == "tool_addition" || type == "tool_removal") {
    read_tool_change(block, type == "tool_addition");
  }
}

void MessageReader::read_call(const JsonPart& block, Parts& parts) {
  const std::string id = block.given("id"), name = block.given("name");
  const JsonPart input = block.given_object("input");
  // One that was answered may have it: a client that gives all its requests one id gets calls of
  // one id.
  if (!calls_.insert(id).second && results_.erase(id) == 0 && checks_results_) {
    block.refuse(".id is \"{}\", which another call before has too.", printable(id));
  }
  parts.calls.push_back({{"id", id},
                         {"type", "function"},
                         {"function", {{"name", name}, {"arguments", input.json()}}}});
}

void MessageReader::read_result(const JsonPart& block, Parts& parts) {
  const std::string id = block.given("tool_use_id");
  if (checks_results_ && !calls_.contains(id)) {
    block.refuse(".tool_use_id is \"{}\", and no tool_use block before has this id.",
                 printable(id));
  }
  if (!results_.insert(id).second && checks_results_) {
    block.refuse(" is a second result of the call \"{}\"; a call has one.", printable(id));
  }
  parts.has_results = true;
  const auto content = block.find("content");
  const std::string where = block.where() + ".tool_result.content";  // as Anthropic's API says it
  messages_.push_back({{"role", "tool"},
                       {"content", content ? result_text({content->json(), where}) : ""},
                       {"tool_call_id", id}});
}

std::string MessageReader::result_text(const JsonPart& content) {
  if (content.json().is_string()) return content.json().get<std::string>();
  if (!content.json().is_array()) {
    content.refuse(" must be a text or a list of blocks, got {}.", shown(content.json()));
  }
  std::vector<std::string> texts;
  for (size_t i = 0; i < content.size(); ++i) {
    const JsonPart block = content.item(i);
    const std::string type = block.given("type");
    if (type == "tool_reference") {
      texts.push_back(name_of_reference(block));
      tools_.show(texts.back());
    } else if (!is_of_other_servers(type)) {
      check_type(block, type, "");
      texts.push_back(block.given_text("text"));
    }
  }
  return fmt::format("{}", fmt::join(texts, "\n"));
}

void MessageReader::read_tool_change(const JsonPart& block, bool adds) {
  const JsonPart tool = block.given_object("tool");
  const std::string type = tool.given("type");
  if (type == "tool_definition") {
    const JsonPart definition = tool.given_object("definition");
    if (adds) return tools_.add(definition);
    tools_.remove(definition.given("name"));
  } else if (type != "tool_reference") {
    tool.refuse(" is of the type \"{}\", which is not known here.", printable(type));
  } else if (adds) {
    tools_.show(name_of_reference(tool));
  } else {
    tools_.remove(name_of_reference(tool));
  }
}

// A list of one text is that text, for clients make one of the other in their next request.
void MessageReader::add(Parts&& parts) {
  Json content = "";
  if (parts.texts.size() == 1) {
    content = parts.texts[0]["text"];
  } else if (parts.role == "system") {
    std::vector<std::string> texts;
    for (const Json& part : parts.texts) texts.push_back(part["text"].get<std::string>());
    content = fmt::format("{}", fmt::join(texts, "\n"));
  } else if (!parts.texts.empty()) {
    content = std::move(parts.texts);
  }
  // Of results, or of changed tools, and nothing else.
  if (is_no_text(content) && (parts.has_results || parts.role == "system")) return;
  Json message = {{"role", parts.role}, {"content", std::move(content)}};
  if (!parts.thought.empty()) message["reasoning_content"] = std::move(parts.thought);
  if (!parts.calls.empty()) message["tool_calls"] = std::move(parts.calls);
  messages_.push_back(std::move(message));
}

bool MessageReader::ends_with_answer() const {
  if (messages_.empty()) return false;
  const Json& last = messages_.back();
  return last["role"] == "assistant" && !is_no_text(last["content"]) &&
         !last.contains("tool_calls");
}

}  // namespace nanovllm::server
