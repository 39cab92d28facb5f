#include "text/chat_messages.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/check.h"
#include "text/hash.h"

namespace nanovllm::text {
namespace {

std::string role_of(const Json& message) {
  const auto role = message.find("role");
  return role != message.end() && role->is_string() ? role->get<std::string>() : "";
}

bool is_of(const Json& message, const char* role) { return role_of(message) == role; }

bool is_empty_text(const Json& value) {
  return value.is_string() && value.get_ref<const std::string&>().empty();
}

constexpr std::array kTextParts = {"text", "input_text", "output_text", "refusal", "thinking"};
constexpr std::array kReasoningNames = {"reasoning", "reasoning_content", "thinking"};
constexpr const char* kBetweenMessages = "\n\n";  // that become one, as vLLM has it
constexpr size_t kShortIdLength = 9;

template <typename... Args>
[[noreturn]] void refuse_message(fmt::format_string<Args...> format, Args&&... args) {
  throw_error(ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

std::string text_of_part(const Json& part, const std::string& where) {
  if (part.is_string()) return part.get<std::string>();
  const auto type = part.is_object() ? part.find("type") : part.end();
  if (!part.is_object() || type == part.end() || !type->is_string()) {
    refuse_message("{} must be a text or an object with a type.", where);
  }
  const auto& kind = type->get_ref<const std::string&>();
  if (std::ranges::find(kTextParts, kind) == kTextParts.end()) {
    refuse_message("{} is of the type \"{}\", which is not supported yet; send text parts only.",
                   where, printable(kind));
  }
  const auto text = part.find(kind == "refusal" || kind == "thinking" ? kind : "text");
  if (text == part.end() || !text->is_string()) refuse_message("{} has no text.", where);
  return text->get<std::string>();
}

Json text_part(std::string text) { return {{"type", "text"}, {"text", std::move(text)}}; }

// vLLM 0.32 makes a text part of one, so that what was thought is shown as what was answered, and
// never makes one of a message's reasoning. Here an answer's thoughts are where the template has
// them, in parts or beside the content, whichever way they came.
Json thought_part(std::string text) {
  return {{"type", "thinking"}, {"thinking", std::move(text)}};
}

bool is_thought(const Json& part) {
  return part.is_object() && part.value("type", Json()) == "thinking";
}

const std::string& words_of(const Json& part) {
  return part[is_thought(part) ? "thinking" : "text"].get_ref<const std::string&>();
}

// A text, or a list of parts of the types text and thinking.
Json content_of_message(const Json& message, const std::string& where) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) return "";
  if (!content->is_array()) return text_of_content(*content, where);
  Json parts = Json::array();
  for (const Json& part : *content) {
    std::string text = text_of_part(part, fmt::format("{}[{}]", where, parts.size()));
    parts.push_back(is_thought(part) ? thought_part(std::move(text)) : text_part(std::move(text)));
  }
  return parts;
}

std::string joined_parts(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  for (const Json& part : content) text += words_of(part);
  return text;
}

// Models write line breaks and the like into JSON as they are.
std::string with_escaped_controls(std::string_view json) {
  const auto is_control = [&](size_t at) { return static_cast<unsigned char>(json[at]) < ' '; };
  std::string result;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    if (in_string && json[i] == '\\') {
      const bool escapes = i + 1 < json.size() && !is_control(i + 1);
      result += '\\';
      result += escapes ? json[++i] : '\\';
    } else if (in_string && is_control(i)) {
      result += fmt::format("\\u{:04x}", static_cast<int>(json[i]));
    } else {
      in_string = in_string != (json[i] == '"');
      result += json[i];
    }
  }
  return result;
}

std::optional<Json> parsed(std::string_view text) {
  for (const std::string& attempt : {std::string(text), with_escaped_controls(text)}) {
    try {
      return parse_ordered_json(attempt, "arguments", {.max_depth = 64});
    } catch (const Error&) {
      // A call that can't be read must not end its chat: it has no arguments then.
    }
  }
  return std::nullopt;
}

// Python's json.dumps, as models were trained with it.
void write_spaced(const Json& value, std::string& out) {
  if (!value.is_structured()) {
    out += value.dump(-1, ' ', false, Json::error_handler_t::replace);
    return;
  }
  out += value.is_object() ? '{' : '[';
  const char* separator = "";
  for (const auto& [key, item] : value.items()) {
    out += std::exchange(separator, ", ");
    if (value.is_object()) {
      write_spaced(key, out);
      out += ": ";
    }
    write_spaced(item, out);
  }
  out += value.is_object() ? '}' : ']';
}

void prepare_calls(Json& message, const TemplateHabits& habits) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return;
  if (!calls->is_array() || calls->empty()) {
    message.erase("tool_calls");
    return;
  }
  for (Json& call : *calls) {
    if (!call.is_object()) refuse_message("a call in tool_calls is not an object.");
    const auto id = call.find("id");
    if (habits.wants_short_call_ids && id != call.end() && id->is_string()) {
      *id = short_call_id(id->get_ref<const std::string&>());
    }
    const auto inner = call.find("function");
    Json& function = inner != call.end() && inner->is_object() ? *inner : call;
    Json arguments = arguments_of(function.value("arguments", Json()));
    if (habits.wants_arguments_as_text) {
      std::string text;
      write_spaced(arguments, text);
      arguments = std::move(text);
    }
    function["arguments"] = std::move(arguments);
  }
  if (habits.wants_null_beside_calls && is_empty_text(message["content"])) {
    message["content"] = nullptr;
  }
}

// Out of the parts of an answer to where they would be beside it.
void take_thoughts_out(Json& message) {
  Json& content = message["content"];
  if (!content.is_array()) return;
  std::string thoughts;
  Json words = Json::array();
  for (Json& part : content) {
    if (is_thought(part)) {
      thoughts += words_of(part);
    } else {
      words.push_back(std::move(part));
    }
  }
  const bool has_words = content.empty() || !words.empty();
  content = has_words ? std::move(words) : Json("");
  if (thoughts.empty()) return;
  for (const char* name : kReasoningNames) message[name] = thoughts;
}

// Where the parts have none of it already.
void put_thought_in_front(Json& content, const Json& thought) {
  if (!thought.is_string() || is_empty_text(thought)) return;
  Json parts = Json::array({thought_part(thought.get<std::string>())});
  if (content.is_string()) {
    if (!is_empty_text(content)) parts.push_back(text_part(content.get<std::string>()));
  } else if (std::ranges::none_of(content, is_thought)) {
    parts.insert(parts.end(), content.begin(), content.end());
  } else {
    return;
  }
  content = std::move(parts);
}

// In the parts, or under all names that templates read, whichever it came under.
void prepare_reasoning(Json& message, const TemplateHabits& habits) {
  const bool in_parts = habits.thoughts_in_parts.contains(role_of(message));
  if (!in_parts && is_of(message, "assistant")) take_thoughts_out(message);
  const auto given = std::ranges::find_if(kReasoningNames,
                                          [&](const char* name) { return message.contains(name); });
  if (given == kReasoningNames.end()) return;
  Json reasoning = message[*given];
  const bool is_too_much = habits.wants_one_text_beside_calls && message.contains("tool_calls") &&
                           reasoning.is_string() && !is_empty_text(reasoning) &&
                           !is_empty_text(message["content"]);
  if (is_too_much) {
    reasoning = reasoning.get<std::string>() + kBetweenMessages + joined_parts(message["content"]);
    message["content"] = "";
  }
  for (const char* name : kReasoningNames) {
    if (is_too_much || !message.contains(name)) message[name] = reasoning;
  }
  if (in_parts) put_thought_in_front(message["content"], reasoning);
}

Json prepare_message(const Json& message, size_t index, const TemplateHabits& habits) {
  const std::string where = fmt::format("messages[{}]", index);
  if (!message.is_object()) refuse_message("{} is not an object", where);
  Json prepared = Json::object();
  for (const auto& [name, value] : message.items()) {
    if (name == "content") {
      prepared[name] = nullptr;  // its place, for templates that write all
    } else if (!value.is_null()) {
      prepared[name] = value;
    }
  }
  prepared["content"] = content_of_message(message, where + ".content");
  const auto result_of = prepared.find("tool_call_id");
  if (habits.wants_short_call_ids && result_of != prepared.end() && result_of->is_string()) {
    *result_of = short_call_id(result_of->get_ref<const std::string&>());
  }
  prepare_reasoning(prepared, habits);
  prepare_calls(prepared, habits);
  if (is_of(prepared, "developer") && !habits.knows_developer) {
    prepared["role"] = "system";
    prepared.erase("tools");
  }
  return prepared;
}

void append_words(Json& message, const std::string& words) {
  Json& content = message["content"];
  if (words.empty()) return;
  if (content.is_array()) {
    content.push_back(text_part((content.empty() ? "" : kBetweenMessages) + words));
  } else if (is_empty_text(content) || content.is_null()) {
    content = words;
  } else {
    content.get_ref<std::string&>() += kBetweenMessages + words;
  }
}

// Those at the head become one. Later ones stay where the template takes them; else they become
// words of the user's message that they stand behind, or a message of the user in their place.
// Never words of what is further back: what a server has computed of the dialogue would be lost.
Json place_system_messages(Json messages, const TemplateHabits& habits) {
  Json placed = Json::array();
  std::optional<size_t> head, user;  // where they are; of the user, the message before
  bool at_head = true;
  for (Json& message : messages) {
    const bool is_system = is_of(message, "system");
    at_head = at_head && (is_system || is_of(message, "developer"));
    const std::optional<size_t> host = at_head ? head : user;
    if (is_system && host && (at_head || !habits.takes_late_system)) {
      append_words(placed[*host], joined_parts(message["content"]));
      continue;
    }
    if (is_system && at_head) head = placed.size();
    if (is_system && !at_head && !habits.takes_late_system) message["role"] = "user";
    user = is_of(message, "user") ? std::optional(placed.size()) : std::nullopt;
    placed.push_back(std::move(message));
  }
  return placed;
}

// What the user says becomes words of the message before where the template takes none of its own
// there.
Json join_user_messages(Json messages, const TemplateHabits& habits) {
  Json joined = Json::array();
  for (Json& message : messages) {
    const bool behind_user = !joined.empty() && is_of(joined.back(), "user");
    const bool behind_result = !joined.empty() && is_of(joined.back(), "tool");
    if (is_of(message, "user") && ((behind_user && !habits.takes_users_in_a_row) ||
                                   (behind_result && !habits.takes_user_behind_result))) {
      append_words(joined.back(), joined_parts(message["content"]));
    } else {
      joined.push_back(std::move(message));
    }
  }
  return joined;
}

void shape_content(Json& message, const TemplateHabits& habits) {
  Json& content = message["content"];
  const std::string role = role_of(message);
  const auto form = habits.content_of(role);
  if (content.is_array() && !habits.thoughts_in_parts.contains(role)) {
    for (Json& part : content) {
      if (is_thought(part)) part = text_part(words_of(part));
    }
  }
  if (content.is_array() && form == TemplateHabits::Content::kText) {
    content = joined_parts(content);
  } else if (content.is_string() && form == TemplateHabits::Content::kParts) {
    content = Json::array({text_part(content.get<std::string>())});
  }
}

}  // namespace

std::string text_of_content(const Json& content, const std::string& where) {
  if (content.is_null()) return {};
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    refuse_message("{} must be a text or a list of parts, got {}.", where, shown(content));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    text += text_of_part(content[i], fmt::format("{}[{}]", where, i));
  }
  return text;
}

Json arguments_of(Json arguments) {
  constexpr int kMaxEncodings = 3;
  for (int i = 0; i < kMaxEncodings && arguments.is_string(); ++i) {
    arguments = parsed(arguments.get_ref<const std::string&>()).value_or(Json());
  }
  return arguments.is_object() ? arguments : Json::object();
}

std::string short_call_id(std::string_view id) {
  constexpr std::string_view kSigns =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  if (id.size() == kShortIdLength && id.find_first_not_of(kSigns) == id.npos) {
    return std::string(id);
  }
  std::string result;
  uint64_t hash = hash_bytes(id);  // 62^9 are 2^53 of its 2^64 values
  for (; result.size() < kShortIdLength; hash /= kSigns.size()) {
    result += kSigns[hash % kSigns.size()];
  }
  return result;
}

Json with_descriptions(Json tools) {
  for (Json& tool : tools) {
    const auto function = tool.is_object() ? tool.find("function") : tool.end();
    if (function == tool.end() || !function->is_object()) continue;
    Json& description = (*function)["description"];
    if (description.is_null()) description = "";
  }
  return tools;
}

Json prepare_messages(const Json& messages, const TemplateHabits& habits) {
  Json prepared = Json::array();
  for (const Json& message : messages) {
    prepared.push_back(prepare_message(message, prepared.size(), habits));
  }
  prepared = place_system_messages(std::move(prepared), habits);
  prepared = join_user_messages(std::move(prepared), habits);
  for (Json& message : prepared) shape_content(message, habits);
  return prepared;
}

}  // namespace nanovllm::text
