#include "grammar/structural_tag.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "grammar/member_style.h"
#include "grammar/regex.h"
#include "grammar/tag_part.h"
#include "io/json.h"

namespace nanovllm::grammar {
namespace {

constexpr size_t kMaxTagBytes = size_t{1} << 20;
constexpr int kMaxFormats = 100;   // one in another
constexpr int kMaxTagDepth = 320;  // lists and objects: two a format, and a schema's

using Texts = std::vector<std::string>;

// Other texts have another one.
std::string key_of(std::string_view what, const Texts& texts) {
  std::string key(what);
  for (const std::string& text : texts) key += fmt::format(" {}:{}", text.size(), text);
  return key;
}

class TagCompiler {
 public:
  TagCompiler(const JsonSchemaOptions& options, const TokenIndex& tokens, Syntax& syntax,
              std::vector<std::string>& notes)
      : options_(options), tokens_(tokens), syntax_(syntax), notes_(notes) {}

  NodeId compile(const Json& root);

 private:
  // A tag in free text: what it begins with, and what is behind that.
  struct Tag {
    std::string begin;
    NodeId rest;
  };

  NodeId format(const Part& part);
  std::optional<NodeId> simple(const Part& part, std::string_view type);
  std::optional<NodeId> composed(const Part& part, std::string_view type);
  std::optional<NodeId> triggered(const Part& part, std::string_view type);
  NodeId any_text(const Part& part);
  NodeId json_schema(const Part& schema, const Part& part);
  void keep_texts(const Part& part, Texts& excluded);
  NodeId tags_with_separator(const Part& part);
  NodeId dispatch(const Part& part, bool by_token);
  NodeId triggered_tags(const Part& part, bool by_token);
  NodeId structures(const Part& root);

  NodeId literal(std::string_view text) { return syntax_.literal(tokens_.with_symbols(text)); }
  std::string bytes_of(const Part& part);     // of a text, or of {"type": "token"}
  std::string token_bytes(const Part& part);  // of an id or a token's text
  Tag tag(const Part& part);
  std::vector<Tag> tags(const Part& part);
  NodeId choice(const std::vector<Tag>& tags);
  NodeId free_text(const Part& part, Texts excluded);
  NodeId tags_in_text(const Part& part, const Texts& triggers, const std::vector<Tag>& tags,
                      const Texts& excluded, bool at_least_one, bool stop_after_first);
  void expect_triggers(const Part& part, const Texts& triggers, const std::vector<Tag>& tags);
  // Calls what throws of a part of its own language, and says where it stands.
  template <typename Compile>
  NodeId placed(const Part& part, Compile&& compile);

  const JsonSchemaOptions& options_;
  const TokenIndex& tokens_;
  Syntax& syntax_;
  std::vector<std::string>& notes_;
  Texts ends_;                           // of the tag around
  int depth_ = 0;                        // formats around
  std::map<std::string, NodeId> known_;  // schemas and free texts
};

NodeId TagCompiler::compile(const Json& root) {
  const Part whole = {&root, ""};
  if (!root.is_object()) {
    throw_error(ErrorCode::kInvalidArgument, "the structural tag is no JSON object");
  }
  if (root.contains("structures")) return structures(whole);
  whole.expect_members({"format"});
  const auto type = whole.find("type");
  if (!type || *type->json != "structural_tag") {
    throw_error(ErrorCode::kInvalidArgument,
                "the structural tag's \"type\" is not \"structural_tag\"");
  }
  const auto found = whole.find("format");
  if (!found) throw_error(ErrorCode::kInvalidArgument, "the structural tag has no \"format\"");
  return format(*found);
}

NodeId TagCompiler::format(const Part& part) {
  if (!part.json->is_object()) part.fail("expected an object");
  if (depth_ == kMaxFormats) part.fail(fmt::format("formats are more than {} deep", kMaxFormats));
  ++depth_;
  const std::string type = part.member("type").text();
  auto node = simple(part, type);
  if (!node) node = composed(part, type);
  if (!node) node = triggered(part, type);
  if (!node) {
    part.refuse(
        fmt::format("the type \"{}\" is not supported; expected one of const_string, any_text, "
                    "json_schema, regex, grammar, token, any_tokens, sequence, or, optional, "
                    "plus, star, repeat, tag, tags_with_separator, triggered_tags, "
                    "token_triggered_tags, dispatch, token_dispatch",
                    printable(type)));
  }
  --depth_;
  return *node;
}

std::optional<NodeId> TagCompiler::simple(const Part& part, std::string_view type) {
  if (type == "const_string") {
    part.expect_members({"value"});
    return literal(part.member("value").text());
  }
  if (type == "token") {
    part.expect_members({"token"});
    return syntax_.literal(bytes_of(part));
  }
  if (type == "regex") {
    part.expect_members({"pattern"});
    const Part pattern = part.member("pattern");
    const std::string regex = pattern.text();
    return placed(pattern, [&] { return compile_regex(regex, syntax_); });
  }
  if (type == "grammar") {
    part.expect_members({"grammar"});
    const Part rules = part.member("grammar");
    const std::string gbnf = rules.text();
    return placed(rules, [&] { return compile_gbnf(gbnf, syntax_); });
  }
  if (type == "json_schema" || type == "qwen_xml_parameter") {
    part.expect_members({"json_schema", "style", "any_order", "max_whitespace_cnt", "excludes"});
    return json_schema(part.member("json_schema"), part);
  }
  if (type == "any_text") {
    part.expect_members({"excludes", "max_chars", "max_tokens"});
    return any_text(part);
  }
  if (type == "any_tokens") {
    // Marks don't come anyway.
    part.expect_members({"exclude_tokens", "max_tokens"});
    Texts excluded;
    for (const Part& token : part.optional_list("exclude_tokens")) {
      excluded.push_back(token_bytes(token));
    }
    if (const auto most = part.find("max_tokens")) most->refuse("can't be enforced");
    return free_text(part, std::move(excluded));
  }
  return std::nullopt;
}

std::optional<NodeId> TagCompiler::composed(const Part& part, std::string_view type) {
  if (type == "sequence" || type == "or") {
    part.expect_members({"elements"});
    std::vector<NodeId> nodes;
    for (const Part& element : part.member("elements").list()) nodes.push_back(format(element));
    return type == "or" ? syntax_.choice(nodes) : syntax_.sequence(nodes);
  }
  if (type == "optional" || type == "star" || type == "plus") {
    part.expect_members({"content"});
    const NodeId content = format(part.member("content"));
    return syntax_.repeat(content, type == "plus" ? 1 : 0, type == "optional" ? 1 : kUnbounded);
  }
  if (type == "repeat") {
    part.expect_members({"content", "min", "max"});
    const int64_t min = part.count("min", 0).value_or(0);
    const int64_t max = part.count("max", -1).value_or(-1);
    if (max >= 0 && max < min) part.fail("\"min\" is above \"max\"");
    return syntax_.repeat(format(part.member("content")), static_cast<uint32_t>(min),
                          max < 0 ? kUnbounded : static_cast<uint32_t>(max));
  }
  if (type == "tag") {
    const Tag its = tag(part);
    return syntax_.sequence(syntax_.literal(its.begin), its.rest);
  }
  return std::nullopt;
}

std::optional<NodeId> TagCompiler::triggered(const Part& part, std::string_view type) {
  if (type == "tags_with_separator") return tags_with_separator(part);
  if (type == "triggered_tags") return triggered_tags(part, false);
  if (type == "token_triggered_tags") return triggered_tags(part, true);
  if (type == "dispatch") return dispatch(part, false);
  if (type == "token_dispatch") return dispatch(part, true);
  return std::nullopt;
}

template <typename Compile>
NodeId TagCompiler::placed(const Part& part, Compile&& compile) {
  try {
    return compile();
  } catch (const Error& error) {
    throw Error(error.code(),
                fmt::format("structural tag at {}: {}", printable(part.path, 300), error.what()));
  }
}

NodeId TagCompiler::json_schema(const Part& schema, const Part& part) {
  const Json& json = *schema.json;
  const auto type = part.find("type"), named = part.find("style");
  const bool is_older = type && *type->json == "qwen_xml_parameter";
  const std::string style = named ? named->text() : is_older ? "qwen_xml" : "json";
  Texts excluded;
  for (const Part& its : part.optional_list("excludes")) excluded.push_back(bytes_of(its));
  std::optional<MemberStyle> members;
  if (style != "json") {
    members = member_style(style, tokens_, syntax_, excluded);
    if (!members) {
      named->refuse(
          fmt::format("\"{}\" is not supported; expected json, qwen_xml, glm_xml or "
                      "pythonic",
                      printable(style)));
    }
  }
  keep_texts(part, excluded);
  if (part.flag("any_order")) {
    const std::string note =
        "structural tag: any_order is not followed; members of objects come "
        "in their schema's order";
    if (std::ranges::find(notes_, note) == notes_.end()) notes_.push_back(note);
  }
  JsonSchemaOptions options = options_;
  if (const auto most = part.count("max_whitespace_cnt", 0)) {
    options.whitespace_pattern = fmt::format("[ \\t\\r\\n]{{0,{}}}", *most);
  }
  std::string text = json.is_string() ? json.get<std::string>() : json.dump();
  Texts all = {style, options.whitespace_pattern.value_or(""), text};
  all.insert(all.end(), excluded.begin(), excluded.end());
  const auto [known, is_new] = known_.try_emplace(key_of("schema", all), syntax_.never());
  if (is_new) {
    known->second = placed(schema, [&] {
      return members ? compile_members(text, *members, options, syntax_, notes_, excluded)
                     : compile_json_schema(text, options, syntax_, notes_, excluded);
    });
  }
  return known->second;
}

// Symbols are no text: what has one does not come in it.
void TagCompiler::keep_texts(const Part& part, Texts& excluded) {
  std::erase_if(excluded, [](const auto& it) { return it.empty() || TokenIndex::has_symbol(it); });
  size_t bytes = 0;
  for (const std::string& text : excluded) bytes += text.size();
  if (bytes > kMaxExcludedBytes) {
    part.refuse(fmt::format("what must not come in its text has {} bytes; at most {} are supported",
                            bytes, kMaxExcludedBytes));
  }
  std::ranges::sort(excluded);
}

NodeId TagCompiler::any_text(const Part& part) {
  if (const auto most = part.find("max_tokens")) {
    most->refuse("can't be enforced; use max_chars");
  }
  Texts excluded;
  for (const Part& its : part.optional_list("excludes")) excluded.push_back(bytes_of(its));
  const auto most = part.count("max_chars", 0);
  if (!most) return free_text(part, std::move(excluded));
  excluded.insert(excluded.end(), ends_.begin(), ends_.end());
  keep_texts(part, excluded);
  if (!excluded.empty()) {
    part.refuse("max_chars can't be enforced where a text is excluded or ends the tag");
  }
  return syntax_.repeat(syntax_.characters(CharRanges::all(), Spelling::kText), 0,
                        static_cast<uint32_t>(*most));
}

NodeId TagCompiler::free_text(const Part& part, Texts excluded) {
  excluded.insert(excluded.end(), ends_.begin(), ends_.end());
  keep_texts(part, excluded);
  if (excluded.empty()) {
    return syntax_.repeat(syntax_.characters(CharRanges::all(), Spelling::kText), 0, kUnbounded);
  }
  const auto [known, is_new] = known_.try_emplace(key_of("text", excluded), syntax_.never());
  if (is_new) known->second = syntax_.dfa(text_without(excluded));
  return known->second;
}

std::string TagCompiler::bytes_of(const Part& part) {
  if (!part.json->is_object()) return tokens_.with_symbols(part.text());
  part.expect_members({"token"});
  return token_bytes(part.member("token"));
}

std::string TagCompiler::token_bytes(const Part& part) {
  if (part.json->is_string()) {
    const std::string name = part.text();
    std::string bytes = tokens_.with_symbols(name);
    if (bytes != TokenIndex::symbol(name)) {
      part.fail(
          fmt::format("\"{}\" is no special or added token of the tokenizer; name it as a "
                      "text",
                      printable(name)));
    }
    return bytes;
  }
  const auto id = integer_of(*part.json);
  if (!id || *id < 0 || *id >= tokens_.vocab_size()) {
    part.fail(fmt::format("expected a token's id below {} or its text", tokens_.vocab_size()));
  }
  std::string bytes(tokens_.bytes(static_cast<int32_t>(*id)));
  if (!TokenIndex::has_symbol(bytes)) {
    part.fail(fmt::format("{} is no special or added token of the tokenizer; name its text", *id));
  }
  return bytes;
}

TagCompiler::Tag TagCompiler::tag(const Part& part) {
  part.expect_members({"begin", "content", "end"});
  if (const auto type = part.find("type"); type && *type->json != "tag") {
    type->fail("expected \"tag\"");
  }
  Tag result{bytes_of(part.member("begin")), syntax_.never()};
  const Part end = part.member("end");
  Texts ends;
  if (end.json->is_array()) {
    for (const Part& its : end.list()) ends.push_back(bytes_of(its));
  } else {
    ends.push_back(bytes_of(end));
  }
  Texts outer = std::exchange(ends_, ends);
  const NodeId content = format(part.member("content"));
  ends_ = std::move(outer);
  result.rest = syntax_.sequence(content, syntax_.choice_of_texts(std::move(ends)));
  return result;
}

std::vector<TagCompiler::Tag> TagCompiler::tags(const Part& part) {
  std::vector<Tag> all;
  for (const Part& its : part.member("tags").list()) all.push_back(tag(its));
  return all;
}

// What all begin with is read once.
NodeId TagCompiler::choice(const std::vector<Tag>& tags) {
  std::string_view shared = tags[0].begin;
  for (const Tag& tag : tags) {
    const auto apart = std::ranges::mismatch(shared, tag.begin).in1;
    shared = shared.substr(0, static_cast<size_t>(apart - shared.begin()));
  }
  std::vector<NodeId> ways;
  ways.reserve(tags.size());
  for (const Tag& tag : tags) {
    ways.push_back(syntax_.sequence(
        syntax_.literal(std::string_view(tag.begin).substr(shared.size())), tag.rest));
  }
  return syntax_.sequence(syntax_.literal(shared), syntax_.choice(ways));
}

NodeId TagCompiler::tags_with_separator(const Part& part) {
  part.expect_members({"tags", "separator", "at_least_one", "stop_after_first"});
  const NodeId one = choice(tags(part));
  NodeId all = one;
  if (!part.flag("stop_after_first")) {
    const auto separator = part.find("separator");
    const NodeId between = separator ? literal(separator->text()) : syntax_.empty();
    all = syntax_.sequence(one, syntax_.repeat(syntax_.sequence(between, one), 0, kUnbounded));
  }
  return part.flag("at_least_one") ? all : syntax_.optional(all);
}

// Free text ends where a trigger has come, for tags alone have one.
NodeId TagCompiler::tags_in_text(const Part& part, const Texts& triggers,
                                 const std::vector<Tag>& tags, const Texts& excluded,
                                 bool at_least_one, bool stop_after_first) {
  Texts not_in_text = triggers;
  not_in_text.insert(not_in_text.end(), excluded.begin(), excluded.end());
  const NodeId text = free_text(part, std::move(not_in_text));
  const NodeId one = choice(tags);
  if (stop_after_first) {
    return at_least_one ? one : syntax_.sequence(text, syntax_.optional(one));
  }
  const NodeId further = syntax_.repeat(syntax_.sequence(one, text), 0, kUnbounded);
  return at_least_one ? syntax_.sequence({one, text, further}) : syntax_.sequence(text, further);
}

void TagCompiler::expect_triggers(const Part& part, const Texts& triggers,
                                  const std::vector<Tag>& tags) {
  for (size_t i = 0; i < triggers.size(); ++i) {
    if (triggers[i].empty()) part.fail(fmt::format("trigger {} is empty", i));
  }
  for (size_t i = 0; i < tags.size(); ++i) {
    const auto begins = [&](const std::string& trigger) {
      return tags[i].begin.starts_with(trigger);
    };
    if (std::ranges::none_of(triggers, begins)) {
      part.fail(fmt::format("tag {} begins with none of the triggers", i));
    }
  }
}

NodeId TagCompiler::triggered_tags(const Part& part, bool by_token) {
  const char* const name = by_token ? "trigger_tokens" : "triggers";
  const char* const others = by_token ? "exclude_tokens" : "excludes";
  part.expect_members({name, "tags", "at_least_one", "stop_after_first", others});
  Texts triggers, excluded;
  const auto bytes = [&](const Part& its) { return by_token ? token_bytes(its) : bytes_of(its); };
  for (const Part& its : part.member(name).list()) triggers.push_back(bytes(its));
  for (const Part& its : part.optional_list(others)) excluded.push_back(bytes(its));
  const std::vector<Tag> all = tags(part);
  expect_triggers(part, triggers, all);
  return tags_in_text(part, triggers, all, excluded, part.flag("at_least_one"),
                      part.flag("stop_after_first"));
}

NodeId TagCompiler::dispatch(const Part& part, bool by_token) {
  const char* const others = by_token ? "exclude_tokens" : "excludes";
  part.expect_members({"rules", "loop", others});
  Texts triggers, excluded;
  std::vector<Tag> all;
  const auto bytes = [&](const Part& its) { return by_token ? token_bytes(its) : bytes_of(its); };
  for (const Part& its : part.optional_list(others)) excluded.push_back(bytes(its));
  for (const Part& rule : part.member("rules").list()) {
    const std::vector<Part> pair = rule.list();
    if (pair.size() != 2) rule.fail("expected a pattern and a format");
    triggers.push_back(bytes(pair[0]));
    all.push_back({triggers.back(), format(pair[1])});
  }
  expect_triggers(part, triggers, all);
  const auto loop = part.find("loop");
  return tags_in_text(part, triggers, all, excluded, false, loop && !part.flag("loop"));
}

NodeId TagCompiler::structures(const Part& root) {
  root.expect_members({"structures", "triggers"});
  Texts triggers;
  for (const Part& its : root.member("triggers").list()) triggers.push_back(bytes_of(its));
  std::vector<Tag> all;
  for (const Part& its : root.member("structures").list()) {
    its.expect_members({"begin", "schema", "end"});
    const NodeId schema = json_schema(its.member("schema"), its);
    all.push_back({bytes_of(its.member("begin")),
                   syntax_.sequence(schema, syntax_.literal(bytes_of(its.member("end"))))});
  }
  expect_triggers(root, triggers, all);
  return tags_in_text(root, triggers, all, {}, false, false);
}

}  // namespace

Json parse_structural_tag(std::string_view json) {
  if (json.size() > kMaxTagBytes) {
    throw_error(ErrorCode::kInvalidArgument,
                "the structural tag has {} bytes; at most {} are supported", json.size(),
                kMaxTagBytes);
  }
  try {
    return parse_ordered_json(json, "the structural tag",
                              {.max_depth = kMaxTagDepth, .exact_members = kEverywhere});
  } catch (const Error& error) {
    throw Error(ErrorCode::kInvalidArgument, error.what());
  }
}

NodeId compile_structural_tag(std::string_view json, const JsonSchemaOptions& options,
                              const TokenIndex& tokens, Syntax& syntax,
                              std::vector<std::string>& notes) {
  return TagCompiler(options, tokens, syntax, notes).compile(parse_structural_tag(json));
}

}  // namespace nanovllm::grammar
