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

// Of a block, an object.
std::string type_of(const Json& block, const std::string& where) {
  if (!block.is_object()) refuse_body("{} must be an object, got {}.", where, shown(block));
  return text_member(block, "type", where);
}

// What other servers' tools did is told in the texts around it.
bool is_of_other_servers(std::string_view type) {
  return type == "server_tool_use" || type == "mcp_tool_use" ||
         (type != "tool_result" && type.ends_with("_tool_result"));
}

void check_type(const std::string& type, const std::string& role, const std::string& where) {
  if (type == "image" || type == "document") {
    refuse_body("{} is a block of the type \"{}\", and this model reads text alone; leave it out.",
                where, type);
  }
  const auto* known =
      std::ranges::find_if(kBlocks, [&](const auto& block) { return block.first == type; });
  if (known == std::end(kBlocks)) {
    refuse_body("{} is a block of the type \"{}\", which is not known here.", where,
                printable(type));
  }
  if (!known->second.empty() && known->second != role) {
    refuse_body("{} is a block of the type \"{}\", which belongs into messages of the role {}.",
                where, type, known->second);
  }
}

std::string name_of_reference(const Json& reference, const std::string& where) {
  return text_member(reference, member(reference, "tool_name") != nullptr ? "tool_name" : "name",
                     where);
}

}  // namespace

const Json* member(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string text_member(const Json& object, const char* name, const std::string& where) {
  const Json* value = member(object, name);
  if (value == nullptr) refuse_body("{}.{} must be given.", where, name);
  if (!value->is_string()) {
    refuse_body("{}.{} must be a text, got {}.", where, name, shown(*value));
  }
  return value->get<std::string>();
}

void MessageTools::add_given(const Json& list) {
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    const Json* name = list[i].is_object() ? member(list[i], "name") : nullptr;
    if (name != nullptr && name->is_string() &&
        places_.contains(name->get_ref<const std::string&>())) {
      refuse_body("{}.name is {}, which another tool before has too.", where, shown(*name));
    }
    add(list[i], where);
    const Json* defers = member(list[i], "defer_loading");
    tools_.back().is_shown = defers == nullptr || *defers != true;
  }
}

void MessageTools::add(const Json& definition, const std::string& where) {
  if (!definition.is_object()) {
    refuse_body("{} must be an object, got {}.", where, shown(definition));
  }
  if (const Json* type = member(definition, "type"); type != nullptr && *type != "custom") {
    refuse_body(
        "{} is of the type {}, a tool of Anthropic's servers, which are not here; leave it out.",
        where, shown(*type));
  }
  const std::string name = text_member(definition, "name", where);
  if (name.empty()) refuse_body("{}.name must not be empty.", where);
  const Json* schema = member(definition, "input_schema");
  if (schema == nullptr) refuse_body("{}.input_schema must be given.", where);
  if (!schema->is_object()) {
    refuse_body("{}.input_schema must be an object, got {}.", where, shown(*schema));
  }
  Json parameters = *schema;
  if (const Json* type = member(parameters, "type"); type != nullptr && *type != "object") {
    refuse_body("{}.input_schema.type must be \"object\", got {}.", where, shown(*type));
  }
  parameters["type"] = "object";
  Json function = {{"name", name}, {"description", nullptr}, {"parameters", std::move(parameters)}};
  if (member(definition, "description") != nullptr) {
    function["description"] = text_member(definition, "description", where);
  }
  remove(name);
  places_[name] = tools_.size();
  tools_.push_back({std::move(function)});
}

void MessageTools::show(const std::string& name) {
  const auto found = places_.find(name);
  if (found != places_.end()) tools_[found->second].is_shown = true;
}

void MessageTools::remove(const std::string& name) {
  const auto found = places_.find(name);
  if (found == places_.end()) return;
  tools_[found->second].is_shown = false;
  places_.erase(found);
}

Json MessageTools::as_chat_has_them() const {
  Json list = Json::array();
  for (const Tool& tool : tools_) {
    if (tool.is_shown) list.push_back({{"type", "function"}, {"function", tool.function}});
  }
  return list;
}

void MessageReader::read_system(const Json& system) {
  Parts parts = {.role = "system"};
  if (system.is_string()) {
    parts.texts.push_back(text_part(system.get<std::string>()));
  } else if (!system.is_array()) {
    refuse_body("system must be a text or a list of text blocks, got {}.", shown(system));
  } else {
    for (size_t i = 0; i < system.size(); ++i) {
      const std::string where = fmt::format("system[{}]", i);
      if (const std::string type = type_of(system[i], where); type != "text") {
        refuse_body("{} is a block of the type \"{}\"; system has text blocks alone.", where,
                    printable(type));
      }
      read_block(system[i], where, parts);
    }
  }
  add(std::move(parts));
}

void MessageReader::read(const Json& message, const std::string& where) {
  Parts parts = {.role = message["role"].get<std::string>()};
  const Json& content = message["content"];
  if (content.is_string()) {
    parts.texts.push_back(text_part(content.get<std::string>()));
  } else if (!content.is_array()) {
    refuse_body("{}.content must be a text or a list of blocks, got {}.", where, shown(content));
  } else {
    for (size_t i = 0; i < content.size(); ++i) {
      read_block(content[i], fmt::format("{}.content[{}]", where, i), parts);
    }
  }
  add(std::move(parts));
}

void MessageReader::read_block(const Json& block, const std::string& where, Parts& parts) {
  const std::string type = type_of(block, where);
  if (is_of_other_servers(type)) return;
  check_type(type, parts.role, where);
  if (type == "text") {
    std::string text = text_member(block, "text", where);
    if (parts.role == "system" && text.starts_with(kBillingHeader)) return;
    parts.texts.push_back(text_part(std::move(text)));
  } else if (type == "thinking") {
    parts.thought += text_member(block, "thinking", where);
  } else if (type == "tool_use") {
    read_call(block, where, parts);
  } else if (type == "tool_result") {
    read_result(block, where, parts);
  } else if (type == "tool_addition" || type == "tool_removal") {
    read_tool_change(block, where);
  }
}

void MessageReader::read_call(const Json& block, const std::string& where, Parts& parts) {
  const std::string id = text_member(block, "id", where);
  const std::string name = text_member(block, "name", where);
  const Json* input = member(block, "input");
  if (input == nullptr) refuse_body("{}.input must be given.", where);
  if (!input->is_object()) {
    refuse_body("{}.input must be an object, got {}.", where, shown(*input));
  }
  // One that was answered may have it: a client that gives all its requests one id gets calls of
  // one id.
  if (!calls_.insert(id).second && results_.erase(id) == 0 && checks_results_) {
    refuse_body("{}.id is \"{}\", which another call before has too.", where, printable(id));
  }
  parts.calls.push_back(
      {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", *input}}}});
}

void MessageReader::read_result(const Json& block, const std::string& where, Parts& parts) {
  const std::string id = text_member(block, "tool_use_id", where);
  if (checks_results_ && !calls_.contains(id)) {
    refuse_body("{}.tool_use_id is \"{}\", and no tool_use block before has this id.", where,
                printable(id));
  }
  if (!results_.insert(id).second && checks_results_) {
    refuse_body("{} is a second result of the call \"{}\"; a call has one.", where, printable(id));
  }
  parts.has_results = true;
  messages_.push_back({{"role", "tool"},
                       {"content", result_text(member(block, "content"), where + ".content")},
                       {"tool_call_id", id}});
}

std::string MessageReader::result_text(const Json* content, const std::string& where) {
  if (content == nullptr) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    refuse_body("{} must be a text or a list of blocks, got {}.", where, shown(*content));
  }
  std::vector<std::string> texts;
  for (size_t i = 0; i < content->size(); ++i) {
    const Json& block = (*content)[i];
    const std::string here = fmt::format("{}[{}]", where, i);
    const std::string type = type_of(block, here);
    if (type == "tool_reference") {
      texts.push_back(name_of_reference(block, here));
      tools_.show(texts.back());
    } else if (!is_of_other_servers(type)) {
      check_type(type, "", here);
      texts.push_back(text_member(block, "text", here));
    }
  }
  return fmt::format("{}", fmt::join(texts, "\n"));
}

void MessageReader::read_tool_change(const Json& block, const std::string& where) {
  const Json* tool = member(block, "tool");
  const std::string here = where + ".tool";
  if (tool == nullptr) refuse_body("{} must be given.", here);
  const std::string type = type_of(*tool, here);
  const bool adds = block["type"] == "tool_addition";
  if (type == "tool_definition") {
    const Json* definition = member(*tool, "definition");
    if (definition == nullptr) refuse_body("{}.definition must be given.", here);
    if (adds) return tools_.add(*definition, here + ".definition");
    if (!definition->is_object()) {
      refuse_body("{}.definition must be an object, got {}.", here, shown(*definition));
    }
    tools_.remove(text_member(*definition, "name", here + ".definition"));
  } else if (type != "tool_reference") {
    refuse_body("{} is of the type \"{}\", which is not known here.", here, printable(type));
  } else if (adds) {
    tools_.show(name_of_reference(*tool, here));
  } else {
    tools_.remove(name_of_reference(*tool, here));
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
