#include "server/transcript/call_tags.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "grammar/structural_tag.h"
#include "io/json.h"
#include "server/transcript/harmony_parser.h"
#include "server/transcript/tag_parser.h"
#include "server/transcript/transcript_formats.h"

namespace nanovllm::server {
namespace {

// Parts of structural tags.
Json constant(std::string_view text) { return {{"type", "const_string"}, {"value", text}}; }
Json pattern(std::string_view regex) { return {{"type", "regex"}, {"pattern", regex}}; }
Json sequence(std::vector<Json> parts) {
  return parts.size() == 1 ? parts[0] : Json{{"type", "sequence"}, {"elements", std::move(parts)}};
}
Json choice(std::vector<Json> ways) {
  return ways.size() == 1 ? ways[0] : Json{{"type", "or"}, {"elements", std::move(ways)}};
}
Json tag(std::string_view begin, Json content, Json end) {
  return {{"type", "tag"}, {"begin", begin}, {"content", std::move(content)}, {"end", end}};
}
Json any_text() { return {{"type", "any_text"}}; }
Json optional(Json content) { return {{"type", "optional"}, {"content", std::move(content)}}; }
Json star(Json content) { return {{"type", "star"}, {"content", std::move(content)}}; }

// A constant is searched for special tokens, which come where it names them; this is not.
Json plain_text(std::string_view text) {
  constexpr std::string_view kOperators = "\\^$.|?*+()[]{}";
  std::string regex;
  for (const char c : text) {
    if (kOperators.find(c) != kOperators.npos) regex += '\\';
    regex += c;
  }
  return pattern(regex);
}

// As the answer of a text follows it.
Json format_of_tag(const std::string& structural_tag) {
  const Json tag = grammar::parse_structural_tag(structural_tag);
  if (!tag.is_object()) {
    throw_error(ErrorCode::kInvalidArgument, "the structural tag is no JSON object");
  }
  if (const Json* format = find_member(tag, "format")) return *format;
  Json tags = Json::array();
  if (const Json* structures = find_member(tag, "structures")) {
    for (const Json& its : *structures) {
      Json one = {{"content", {{"type", "json_schema"}}}};
      for (const char* name : {"begin", "end"}) {
        if (const Json* text = find_member(its, name)) one[name] = *text;
      }
      if (const Json* schema = find_member(its, "schema")) one["content"]["json_schema"] = *schema;
      tags.push_back(std::move(one));
    }
  }
  return {{"type", "triggered_tags"}, {"triggers", tag.value("triggers", Json())}, {"tags", tags}};
}

// An object that the tool's schema allows, or any one.
Json schema_of(const Json& function, bool is_enforced) {
  Json schema = Json::object();
  const Json* given = find_member(function, "parameters");
  if (is_enforced && given != nullptr && given->is_object()) schema = *given;
  schema["type"] = "object";
  return schema;
}

bool is_strict(const Json& function) {
  const Json* strict = find_member(function, "strict");
  return strict != nullptr && *strict == true;
}

[[noreturn]] void refuse_name(const std::string& name) {
  throw_error(ErrorCode::kUnsupported,
              "the function \"{}\" has a name that the model's calls can't spell; use letters, "
              "digits, _ and -",
              printable(name));
}

// How TagParser's formats write calls.
class CallWriter {
 public:
  CallWriter(const ToolFormat& format, const TranscriptTags& tags, std::string_view chat_template,
             const CallRules& rules)
      : format_(format), layout_(format.layout), open_(format.open_tag), rules_(rules) {
    suit(chat_template);
    for (const std::string_view its : {format.open_tag, format.close_tag}) {
      if (!its.empty() && !tags.ids.contains(its)) plain_tags_.push_back(its);
    }
  }

  // Nothing but calls, behind what ends a thought.
  Json calls() const { return sequence({pattern("\\n{0,2}"), all_calls(true)}); }

  // Calls, or what the format says. No blanks stand before: they would decide for calls.
  Json calls_or(const Json& text) const { return choice({all_calls(false), text}); }

  // Free text with calls in it.
  Json text_with_calls() const {
    if (format_.begins_answer) {
      // What begins as one without a tag is one.
      const Json open = constant(format_.open_tag);
      const char* const others = plain_tags_.empty() ? "{" : "{<";
      return choice(
          {sequence({optional(open), all_calls(false)}),
           optional(sequence({pattern(fmt::format("[ \\t\\r\\n]*[^{} \\t\\r\\n]", others)),
                              tags_in_text({tag(format_.open_tag, all_calls(false), "")})}))});
    }
    std::vector<Json> tags;
    if (layout_.is_list) {
      tags.push_back(list(format_.open_tag, false));
      if (!format_.other_open.empty()) tags.push_back(list(format_.other_open, false));
      return tags_in_text(std::move(tags));
    }
    for (const Json& tool : rules_.tools) tags.push_back(call(tool, false));
    if (format_.other_is_call) {
      for (const Json& tool : rules_.tools) tags.push_back(call_without_tag(tool));
    }
    return tags_in_text(std::move(tags));
  }

 private:
  void suit(std::string_view chat_template);

  // The name, and what stands between it and the arguments.
  std::vector<Json> begin_of_call(const Json& function) const {
    std::vector<Json> parts = {plain_text(name_of(function))};
    if (!layout_.behind_name.empty()) parts.push_back(constant(layout_.behind_name));
    return parts;
  }

  std::string name_of(const Json& function) const {
    auto name = function["name"].get<std::string>();
    const auto is_in_name = [&](std::string_view tag) { return name.find(tag) != name.npos; };
    if (std::ranges::any_of(plain_tags_, is_in_name)) refuse_name(name);
    // In JSON any other name can be spelled.
    if (layout_.behind_name.starts_with('"')) {
      const std::string text = Json(name).dump();
      return text.substr(1, text.size() - 2);
    }
    if (name.empty() || !std::ranges::all_of(name, is_call_name_byte)) refuse_name(name);
    return name;
  }

  Json arguments(const Json& function, bool is_enforced) const {
    Json part = {{"type", "json_schema"},
                 {"json_schema", schema_of(function, is_enforced || is_strict(function))},
                 {"style", layout_.style}};
    if (!plain_tags_.empty()) part["excludes"] = plain_tags_;
    return part;
  }

  Json call(const Json& tool, bool is_enforced) const {
    const Json& function = tool["function"];
    std::vector<Json> parts = begin_of_call(function);
    // An id stands between the name and the arguments, or behind them.
    if (!layout_.id_mark.empty()) {
      parts.push_back(constant(layout_.id_mark));
      parts.push_back(pattern("[A-Za-z0-9]{9}"));
    }
    if (!layout_.arguments_mark.empty()) parts.push_back(constant(layout_.arguments_mark));
    parts.push_back(arguments(function, is_enforced));
    if (layout_.may_have_id_member) {
      parts.push_back(optional(pattern(", \"id\": \"[A-Za-z0-9]{9}\"")));
    }
    return tag(layout_.begin, sequence(std::move(parts)), layout_.end);
  }

  // The model has left the tag around it out.
  Json call_without_tag(const Json& tool) const {
    const std::string_view end = layout_.end, close = end.substr(0, end.rfind('\n'));
    const Json& function = tool["function"];
    std::vector<Json> parts = begin_of_call(function);
    parts.push_back(arguments(function, false));
    return tag(format_.other_open, sequence(std::move(parts)), Json::array({end, close}));
  }

  Json separated(bool are_enforced) const {
    std::vector<Json> tags;
    for (const Json& tool : rules_.tools) tags.push_back(call(tool, are_enforced));
    return {{"type", "tags_with_separator"},
            {"tags", std::move(tags)},
            {"separator", layout_.between},
            {"at_least_one", true},
            {"stop_after_first", !rules_.parallel}};
  }

  Json list(std::string_view open, bool are_enforced) const {
    return tag(fmt::format("{}{}", open, layout_.list_begin), separated(are_enforced),
               layout_.list_end);
  }

  Json all_calls(bool are_enforced) const {
    return layout_.is_list ? list(open_, are_enforced) : separated(are_enforced);
  }

  Json tags_in_text(std::vector<Json> tags) const {
    Json triggers = Json::array({format_.open_tag});
    if (!format_.other_open.empty()) triggers.push_back(format_.other_open);
    Json part = {{"type", "triggered_tags"}, {"triggers", triggers}, {"tags", std::move(tags)}};
    part["stop_after_first"] = !rules_.parallel || layout_.is_list;
    return part;
  }

  const ToolFormat& format_;
  CallLayout layout_;
  std::string_view open_;  // before a list
  const CallRules& rules_;
  std::vector<std::string_view> plain_tags_;  // that are no tokens
};

// Where models of one parser differ, their template tells.
void CallWriter::suit(std::string_view chat_template) {
  const auto has = [&](std::string_view part) { return chat_template.find(part) != part.npos; };
  if (format_.name == "mistral" && has("[ARGS]")) {
    layout_ = {.begin = "[TOOL_CALLS]", .arguments_mark = "[ARGS]"};
    if (has("[CALL_ID]")) layout_.id_mark = "[CALL_ID]";
  } else if (layout_.is_list && !format_.other_open.empty() && !has(format_.open_tag) &&
             has(format_.other_open)) {
    open_ = format_.other_open;
  } else if (layout_.style == "glm_xml" && !chat_template.empty()) {
    const bool has_lines = has("</arg_key>\n");
    layout_.end = has_lines ? "\n</tool_call>" : "</tool_call>";
    layout_.between = has_lines ? "\n" : "";
  }
}

// gpt-oss thinks and talks in messages of their own, and ends with one that is a call or final.
class HarmonyWriter {
 public:
  static Json turn(const CallRules* calls, const Json* text) {
    const Json next = constant("<|start|>assistant");
    std::vector<Json> before = {
        sequence({tag("<|channel|>analysis<|message|>", any_text(), "<|end|>"), next})};
    std::vector<Json> last;
    if (calls != nullptr) {
      before.push_back(
          sequence({tag("<|channel|>commentary<|message|>", any_text(), "<|end|>"), next}));
      for (const Json& tool : calls->tools) {
        last.push_back(call(tool["function"], calls->must_call));
      }
    }
    if (calls == nullptr || !calls->must_call) {
      const Json ends = Json::array({"", "<|return|>"});
      last.push_back(tag("<|channel|>final<|message|>", text ? *text : any_text(), ends));
      if (text != nullptr) {
        last.push_back(tag("<|channel|>final <|constrain|>json<|message|>", *text, ends));
      }
    }
    return sequence({star(choice(std::move(before))), choice(std::move(last))});
  }

 private:
  // In all orders that the model was taught, or that its template has.
  static Json call(const Json& function, bool is_enforced) {
    const auto name = function["name"].get<std::string>();
    if (name.empty() || name.find_first_of(" \t\r\n<") != name.npos) refuse_name(name);
    std::vector<Json> headers;
    for (const char* type : {" <|constrain|>json", " json", ""}) {
      headers.push_back(sequence({constant("<|channel|>commentary to=functions."), plain_text(name),
                                  constant(fmt::format("{}<|message|>", type))}));
      headers.push_back(
          sequence({constant(" to=functions."), plain_text(name),
                    constant(fmt::format("<|channel|>commentary{}<|message|>", type))}));
    }
    return sequence({choice(std::move(headers)),
                     {{"type", "json_schema"},
                      {"json_schema", schema_of(function, is_enforced || is_strict(function))}},
                     optional(constant("<|call|>"))});
  }
};

}  // namespace

bool CallRules::has_strict() const {
  return std::ranges::any_of(tools, [](const Json& tool) { return is_strict(tool["function"]); });
}

bool CallRules::are_enforced(const Json& function) const {
  return must_call || is_strict(function);
}

Json enforced_schema(const Json& function) { return schema_of(function, true); }

Json text_format(const StructuredOutputsParams& asked) {
  if (asked.json) return {{"type", "json_schema"}, {"json_schema", *asked.json}};
  if (asked.regex) return pattern(*asked.regex);
  if (asked.grammar) return {{"type", "grammar"}, {"grammar", *asked.grammar}};
  if (asked.structural_tag) return format_of_tag(*asked.structural_tag);
  if (asked.json_object) {
    return {{"type", "json_schema"}, {"json_schema", {{"type", "object"}}}};
  }
  if (asked.choice) {
    std::vector<Json> texts;
    for (const std::string& text : *asked.choice) texts.push_back(constant(text));
    return {{"type", "or"}, {"elements", std::move(texts)}};
  }
  throw_error(ErrorCode::kInvalidArgument, "structured_outputs say nothing");
}

const Json* function_at(const Json& tag, std::string_view path, const CallRules& calls) {
  constexpr std::string_view kSchema = "/json_schema";
  const size_t at = path.find(kSchema);
  if (at == path.npos) return nullptr;
  const Json::json_pointer place(std::string(path.substr(0, at + kSchema.size())));
  if (!tag.contains(place)) return nullptr;
  for (const Json& tool : calls.tools) {
    if (tag[place] == schema_of(tool["function"], true)) return &tool["function"];
  }
  return nullptr;
}

std::string answer_tag(const TranscriptFormat& format, const TranscriptTags& tags,
                       std::string_view chat_template, std::string_view turn,
                       const CallRules* calls, const Json* text) {
  Json all;
  if (has_channels(format)) {
    const bool goes_on = turn.find("<|message|>") != turn.npos;
    if (goes_on && calls != nullptr && calls->must_call) {
      throw_error(ErrorCode::kUnsupported,
                  "no call can be asked of an answer that goes on with a message");
    }
    all = goes_on ? (text ? *text : any_text()) : HarmonyWriter::turn(calls, text);
  } else if (calls == nullptr) {
    all = text ? *text : any_text();
  } else {
    const ToolFormat* tools = tool_format(format);
    if (tools == nullptr) {
      throw_error(ErrorCode::kUnsupported, "calls need a parser; none is known for this model");
    }
    const CallWriter writer(*tools, tags, chat_template, *calls);
    if (calls->must_call) {
      all = writer.calls();
    } else if (text != nullptr) {
      all = writer.calls_or(*text);
    } else {
      all = writer.text_with_calls();
    }
  }
  return Json({{"type", "structural_tag"}, {"format", std::move(all)}}).dump();
}

}  // namespace nanovllm::server
