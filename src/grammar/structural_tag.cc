#include "grammar/structural_tag.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "io/json.h"

namespace nanovllm::grammar {
namespace {

constexpr size_t kMaxTagBytes = size_t{1} << 20;
constexpr int kMaxFormats = 100;   // one in another
constexpr int kMaxTagDepth = 320;  // lists and objects: two a format, and a schema's
constexpr int64_t kMaxTimes = 1'000'000;

using Texts = std::vector<std::string>;

// A member of an object and where it stands.
struct Part {
  const Json* json;
  std::string path;
};

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

  [[noreturn]] static void fail(const Part& part, std::string_view what) {
    throw_error(ErrorCode::kInvalidArgument, "structural tag at {}: {}", printable(part.path, 300),
                what);
  }
  [[noreturn]] static void refuse(const Part& part, std::string_view what) {
    throw_error(ErrorCode::kUnsupported, "structural tag at {}: {}", printable(part.path, 300),
                what);
  }

  // Members; absent and null ones are none.
  static std::optional<Part> find(const Part& part, std::string_view name);
  static Part member(const Part& part, std::string_view name);
  static std::vector<Part> list(const Part& part);  // of one thing or more
  static std::string text(const Part& part);
  static bool flag(const Part& part, std::string_view name);
  static std::optional<int64_t> count(const Part& part, std::string_view name, int64_t least);
  static void expect_members(const Part& part, std::initializer_list<std::string_view> names);

  NodeId format(const Part& part);
  std::optional<NodeId> simple(const Part& part, std::string_view type);
  std::optional<NodeId> composed(const Part& part, std::string_view type);
  std::optional<NodeId> triggered(const Part& part, std::string_view type);
  NodeId any_text(const Part& part);
  NodeId json_schema(const Part& schema, const Part& part);
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

std::optional<Part> TagCompiler::find(const Part& part, std::string_view name) {
  const Json* found = find_member(*part.json, name);
  if (found == nullptr) return std::nullopt;
  return Part{found, fmt::format("{}/{}", part.path, name)};
}

Part TagCompiler::member(const Part& part, std::string_view name) {
  auto found = find(part, name);
  if (!found) fail(part, fmt::format("\"{}\" is missing", name));
  return *found;
}

std::vector<Part> TagCompiler::list(const Part& part) {
  if (!part.json->is_array() || part.json->empty()) fail(part, "expected a list that is not empty");
  std::vector<Part> parts;
  for (size_t i = 0; i < part.json->size(); ++i) {
    parts.push_back({&(*part.json)[i], fmt::format("{}/{}", part.path, i)});
  }
  return parts;
}

std::string TagCompiler::text(const Part& part) {
  if (!part.json->is_string()) fail(part, "expected a text");
  return part.json->get<std::string>();
}

bool TagCompiler::flag(const Part& part, std::string_view name) {
  const auto found = find(part, name);
  if (found && !found->json->is_boolean()) fail(*found, "expected true or false");
  return found && found->json->get<bool>();
}

std::optional<int64_t> TagCompiler::count(const Part& part, std::string_view name, int64_t least) {
  const auto found = find(part, name);
  if (!found) return std::nullopt;
  const auto value = integer_of(*found->json);
  if (!value || *value < least || *value > kMaxTimes) {
    fail(*found, fmt::format("expected a whole number from {} to {}", least, kMaxTimes));
  }
  return value;
}

void TagCompiler::expect_members(const Part& part, std::initializer_list<std::string_view> names) {
  if (!part.json->is_object()) fail(part, "expected an object");
  for (const auto& [name, value] : part.json->items()) {
    if (name == "type" || value.is_null()) continue;
    if (std::ranges::find(names, name) == names.end()) {
      refuse(part, fmt::format("\"{}\" is not known; expected {}", printable(name),
                               fmt::join(names, ", ")));
    }
  }
}

NodeId TagCompiler::compile(const Json& root) {
  const Part whole = {&root, ""};
  if (!root.is_object()) {
    throw_error(ErrorCode::kInvalidArgument, "the structural tag is no JSON object");
  }
  if (root.contains("structures")) return structures(whole);
  expect_members(whole, {"format"});
  const auto type = find(whole, "type");
  if (!type || *type->json != "structural_tag") {
    throw_error(ErrorCode::kInvalidArgument,
                "the structural tag's \"type\" is not \"structural_tag\"");
  }
  const auto found = find(whole, "format");
  if (!found) throw_error(ErrorCode::kInvalidArgument, "the structural tag has no \"format\"");
  return format(*found);
}

NodeId TagCompiler::format(const Part& part) {
  if (!part.json->is_object()) fail(part, "expected an object");
  if (depth_ == kMaxFormats) fail(part, fmt::format("formats are more than {} deep", kMaxFormats));
  ++depth_;
  const std::string type = text(member(part, "type"));
  auto node = simple(part, type);
  if (!node) node = composed(part, type);
  if (!node) node = triggered(part, type);
  if (!node) {
    refuse(part,
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
    expect_members(part, {"value"});
    return literal(text(member(part, "value")));
  }
  if (type == "token") {
    expect_members(part, {"token"});
    return syntax_.literal(bytes_of(part));
  }
  if (type == "regex") {
    expect_members(part, {"pattern"});
    const Part pattern = member(part, "pattern");
    const std::string regex = text(pattern);
    return placed(pattern, [&] { return compile_regex(regex, syntax_); });
  }
  if (type == "grammar") {
    expect_members(part, {"grammar"});
    const Part rules = member(part, "grammar");
    const std::string gbnf = text(rules);
    return placed(rules, [&] { return compile_gbnf(gbnf, syntax_); });
  }
  if (type == "json_schema" || type == "qwen_xml_parameter") {
    expect_members(part, {"json_schema", "style", "any_order", "max_whitespace_cnt", "excludes"});
    return json_schema(member(part, "json_schema"), part);
  }
  if (type == "any_text") {
    expect_members(part, {"excludes", "max_chars", "max_tokens"});
    return any_text(part);
  }
  if (type == "any_tokens") {
    // Marks don't come anyway.
    expect_members(part, {"exclude_tokens", "max_tokens"});
    Texts excluded;
    if (const auto tokens = find(part, "exclude_tokens"); tokens && !tokens->json->empty()) {
      for (const Part& token : list(*tokens)) excluded.push_back(token_bytes(token));
    }
    if (const auto most = find(part, "max_tokens")) refuse(*most, "can't be enforced");
    return free_text(part, std::move(excluded));
  }
  return std::nullopt;
}

std::optional<NodeId> TagCompiler::composed(const Part& part, std::string_view type) {
  if (type == "sequence" || type == "or") {
    expect_members(part, {"elements"});
    std::vector<NodeId> nodes;
    for (const Part& element : list(member(part, "elements"))) nodes.push_back(format(element));
    return type == "or" ? syntax_.choice(nodes) : syntax_.sequence(nodes);
  }
  if (type == "optional" || type == "star" || type == "plus") {
    expect_members(part, {"content"});
    const NodeId content = format(member(part, "content"));
    return syntax_.repeat(content, type == "plus" ? 1 : 0, type == "optional" ? 1 : kUnbounded);
  }
  if (type == "repeat") {
    expect_members(part, {"content", "min", "max"});
    const int64_t min = count(part, "min", 0).value_or(0);
    const int64_t max = count(part, "max", -1).value_or(-1);
    if (max >= 0 && max < min) fail(part, "\"min\" is above \"max\"");
    return syntax_.repeat(format(member(part, "content")), static_cast<uint32_t>(min),
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
  if (const auto style = find(part, "style"); style && *style->json != "json") {
    refuse(*style, fmt::format("{} is not supported; expected \"json\"", shown(*style->json)));
  }
  if (const auto excludes = find(part, "excludes"); excludes && !excludes->json->empty()) {
    refuse(*excludes, "can't be enforced with a schema");
  }
  if (flag(part, "any_order")) {
    const std::string note =
        "structural tag: any_order is not followed; members of objects come "
        "in their schema's order";
    if (std::ranges::find(notes_, note) == notes_.end()) notes_.push_back(note);
  }
  JsonSchemaOptions options = options_;
  if (const auto most = count(part, "max_whitespace_cnt", 0)) {
    options.whitespace_pattern = fmt::format("[ \\t\\r\\n]{{0,{}}}", *most);
  }
  std::string text = json.is_string() ? json.get<std::string>() : json.dump();
  const auto [known, is_new] = known_.try_emplace(
      fmt::format("{}\n{}", options.whitespace_pattern.value_or(""), text), syntax_.never());
  if (is_new) {
    known->second =
        placed(schema, [&] { return compile_json_schema(text, options, syntax_, notes_); });
  }
  return known->second;
}

NodeId TagCompiler::any_text(const Part& part) {
  if (const auto most = find(part, "max_tokens")) {
    refuse(*most, "can't be enforced; use max_chars");
  }
  Texts excluded;
  if (const auto texts = find(part, "excludes"); texts && !texts->json->empty()) {
    for (const Part& its : list(*texts)) excluded.push_back(bytes_of(its));
  }
  const auto most = count(part, "max_chars", 0);
  if (!most) return free_text(part, std::move(excluded));
  excluded.insert(excluded.end(), ends_.begin(), ends_.end());
  const auto is_text = [](const auto& it) { return !it.empty() && !TokenIndex::has_symbol(it); };
  if (std::ranges::any_of(excluded, is_text)) {
    refuse(part, "max_chars can't be enforced where a text is excluded or ends the tag");
  }
  return syntax_.repeat(syntax_.characters(CharRanges::all(), Spelling::kText), 0,
                        static_cast<uint32_t>(*most));
}

// Symbols are no text: what has one does not come in it.
NodeId TagCompiler::free_text(const Part& part, Texts excluded) {
  excluded.insert(excluded.end(), ends_.begin(), ends_.end());
  std::erase_if(excluded, [](const auto& it) { return it.empty() || TokenIndex::has_symbol(it); });
  if (excluded.empty()) {
    return syntax_.repeat(syntax_.characters(CharRanges::all(), Spelling::kText), 0, kUnbounded);
  }
  size_t bytes = 0;
  for (const std::string& text : excluded) bytes += text.size();
  if (bytes > kMaxExcludedBytes) {
    refuse(part,
           fmt::format("what must not come in its text has {} bytes; at most {} are supported",
                       bytes, kMaxExcludedBytes));
  }
  std::ranges::sort(excluded);
  std::string key = fmt::format("text without {}", fmt::join(excluded, "\n"));
  const auto [known, is_new] = known_.try_emplace(std::move(key), syntax_.never());
  if (is_new) known->second = syntax_.dfa(text_without(excluded));
  return known->second;
}

std::string TagCompiler::bytes_of(const Part& part) {
  if (!part.json->is_object()) return tokens_.with_symbols(text(part));
  expect_members(part, {"token"});
  return token_bytes(member(part, "token"));
}

std::string TagCompiler::token_bytes(const Part& part) {
  if (part.json->is_string()) {
    const std::string name = text(part);
    const std::string bytes = tokens_.with_symbols(name);
    if (bytes != TokenIndex::symbol(name)) {
      fail(part, fmt::format("\"{}\" is no special or added token of the tokenizer; name it as a "
                             "text",
                             printable(name)));
    }
    return bytes;
  }
  const auto id = integer_of(*part.json);
  if (!id || *id < 0 || *id >= tokens_.vocab_size()) {
    fail(part, fmt::format("expected a token's id below {} or its text", tokens_.vocab_size()));
  }
  std::string bytes(tokens_.bytes(static_cast<int32_t>(*id)));
  if (!TokenIndex::has_symbol(bytes)) {
    fail(part, fmt::format("{} is no special or added token of the tokenizer; name its text", *id));
  }
  return bytes;
}

TagCompiler::Tag TagCompiler::tag(const Part& part) {
  expect_members(part, {"begin", "content", "end"});
  if (const auto type = find(part, "type"); type && *type->json != "tag") {
    fail(*type, "expected \"tag\"");
  }
  Tag result{bytes_of(member(part, "begin")), syntax_.never()};
  const Part end = member(part, "end");
  Texts ends;
  if (end.json->is_array()) {
    for (const Part& its : list(end)) ends.push_back(bytes_of(its));
  } else {
    ends.push_back(bytes_of(end));
  }
  Texts outer = std::exchange(ends_, ends);
  const NodeId content = format(member(part, "content"));
  ends_ = std::move(outer);
  result.rest = syntax_.sequence(content, syntax_.choice_of_texts(std::move(ends)));
  return result;
}

std::vector<TagCompiler::Tag> TagCompiler::tags(const Part& part) {
  std::vector<Tag> all;
  for (const Part& its : list(member(part, "tags"))) all.push_back(tag(its));
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
  for (const Tag& tag : tags) {
    ways.push_back(syntax_.sequence(
        syntax_.literal(std::string_view(tag.begin).substr(shared.size())), tag.rest));
  }
  return syntax_.sequence(syntax_.literal(shared), syntax_.choice(ways));
}

NodeId TagCompiler::tags_with_separator(const Part& part) {
  expect_members(part, {"tags", "separator", "at_least_one", "stop_after_first"});
  const NodeId one = choice(tags(part));
  NodeId all = one;
  if (!flag(part, "stop_after_first")) {
    const auto separator = find(part, "separator");
    const NodeId between = separator ? literal(text(*separator)) : syntax_.empty();
    all = syntax_.sequence(one, syntax_.repeat(syntax_.sequence(between, one), 0, kUnbounded));
  }
  return flag(part, "at_least_one") ? all : syntax_.optional(all);
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
    if (triggers[i].empty()) fail(part, fmt::format("trigger {} is empty", i));
  }
  for (size_t i = 0; i < tags.size(); ++i) {
    const auto begins = [&](const std::string& trigger) {
      return tags[i].begin.starts_with(trigger);
    };
    if (std::ranges::none_of(triggers, begins)) {
      fail(part, fmt::format("tag {} begins with none of the triggers", i));
    }
  }
}

NodeId TagCompiler::triggered_tags(const Part& part, bool by_token) {
  const char* const name = by_token ? "trigger_tokens" : "triggers";
  const char* const others = by_token ? "exclude_tokens" : "excludes";
  expect_members(part, {name, "tags", "at_least_one", "stop_after_first", others});
  Texts triggers, excluded;
  const auto bytes = [&](const Part& its) { return by_token ? token_bytes(its) : bytes_of(its); };
  for (const Part& its : list(member(part, name))) triggers.push_back(bytes(its));
  if (const auto texts = find(part, others); texts && !texts->json->empty()) {
    for (const Part& its : list(*texts)) excluded.push_back(bytes(its));
  }
  const std::vector<Tag> all = tags(part);
  expect_triggers(part, triggers, all);
  return tags_in_text(part, triggers, all, excluded, flag(part, "at_least_one"),
                      flag(part, "stop_after_first"));
}

NodeId TagCompiler::dispatch(const Part& part, bool by_token) {
  const char* const others = by_token ? "exclude_tokens" : "excludes";
  expect_members(part, {"rules", "loop", others});
  Texts triggers, excluded;
  std::vector<Tag> all;
  const auto bytes = [&](const Part& its) { return by_token ? token_bytes(its) : bytes_of(its); };
  if (const auto texts = find(part, others); texts && !texts->json->empty()) {
    for (const Part& its : list(*texts)) excluded.push_back(bytes(its));
  }
  for (const Part& rule : list(member(part, "rules"))) {
    const std::vector<Part> pair = list(rule);
    if (pair.size() != 2) fail(rule, "expected a pattern and a format");
    triggers.push_back(bytes(pair[0]));
    all.push_back({triggers.back(), format(pair[1])});
  }
  expect_triggers(part, triggers, all);
  const auto loop = find(part, "loop");
  return tags_in_text(part, triggers, all, excluded, false, loop && !flag(part, "loop"));
}

NodeId TagCompiler::structures(const Part& root) {
  expect_members(root, {"structures", "triggers"});
  Texts triggers;
  for (const Part& its : list(member(root, "triggers"))) triggers.push_back(bytes_of(its));
  std::vector<Tag> all;
  for (const Part& its : list(member(root, "structures"))) {
    expect_members(its, {"begin", "schema", "end"});
    const NodeId schema = json_schema(member(its, "schema"), its);
    all.push_back({bytes_of(member(its, "begin")),
                   syntax_.sequence(schema, syntax_.literal(bytes_of(member(its, "end"))))});
  }
  expect_triggers(root, triggers, all);
  return tags_in_text(root, triggers, all, {}, false, false);
}

}  // namespace

NodeId compile_structural_tag(std::string_view json, const JsonSchemaOptions& options,
                              const TokenIndex& tokens, Syntax& syntax,
                              std::vector<std::string>& notes) {
  if (json.size() > kMaxTagBytes) {
    throw_error(ErrorCode::kInvalidArgument,
                "the structural tag has {} bytes; at most {} are supported", json.size(),
                kMaxTagBytes);
  }
  Json root;
  try {
    root = parse_ordered_json(json, "the structural tag", {.max_depth = kMaxTagDepth});
  } catch (const Error& error) {
    throw Error(ErrorCode::kInvalidArgument, error.what());
  }
  return TagCompiler(options, tokens, syntax, notes).compile(root);
}

}  // namespace nanovllm::grammar
