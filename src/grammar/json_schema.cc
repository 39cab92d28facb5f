#include "grammar/json_schema.h"

#include <algorithm>

#include "base/check.h"
#include "grammar/regex.h"
#include "grammar/schema_compiler.h"
#include "io/json.h"

namespace nanovllm::grammar {
namespace {

constexpr size_t kMaxMerges = 10'000;  // sets of schemas that are looked at
constexpr int kMaxSchemaCalls = 64;    // one in another; what is deeper waits
constexpr int kMaxReferences = 500;    // one after the other
constexpr size_t kMaxTerms = 2000;     // that speak of one value
constexpr size_t kStepsOfMerge = 20;
constexpr uint32_t kMaxBlanks = 64;  // behind a newline
constexpr size_t kManyParts = 64;    // of a sequence, which is shared where it comes again
constexpr size_t kMaxConflicts = 4;  // places that a message names

}  // namespace

NodeId compile_json_schema(std::string_view schema, const JsonSchemaOptions& options,
                           Syntax& syntax, std::vector<std::string>& notes,
                           std::vector<std::string> excluded) {
  const SchemaDocument document(schema);
  return SchemaCompiler(document, options, syntax, notes, std::move(excluded)).compile();
}

NodeId compile_members(std::string_view schema, const MemberStyle& style,
                       const JsonSchemaOptions& options, Syntax& syntax,
                       std::vector<std::string>& notes, std::vector<std::string> excluded) {
  const SchemaDocument document(schema);
  return SchemaCompiler(document, options, syntax, notes, std::move(excluded))
      .compile_members(style);
}

SchemaCompiler::SchemaCompiler(const SchemaDocument& document, const JsonSchemaOptions& options,
                               Syntax& syntax, std::vector<std::string>& notes,
                               std::vector<std::string> excluded)
    : document_(document),
      options_(options),
      syntax_(syntax),
      notes_(notes),
      excluded_(std::move(excluded)) {
  const NodeId blank = syntax_.literal(" ");
  NodeId behind_mark;
  if (options_.whitespace_pattern) {
    const CharRanges blanks = {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};
    space_ = behind_mark = compile_regex(*options_.whitespace_pattern, syntax_,
                                         {.where = "whitespace_pattern",
                                          .only = &blanks,
                                          .without = "has a part that is no white space of JSON"});
  } else if (options_.disable_any_whitespace) {
    space_ = syntax_.empty();
    behind_mark = syntax_.optional(blank);
  } else {
    const NodeId blanks = syntax_.characters({{'\t', '\t'}, {' ', ' '}}, Spelling::kText);
    space_ = behind_mark = syntax_.choice(
        {syntax_.empty(), blank,
         syntax_.sequence({syntax_.literal("\n"), syntax_.repeat(blanks, 0, kMaxBlanks)})});
  }
  comma_ = syntax_.sequence({space_, syntax_.literal(","), behind_mark});
  colon_ = syntax_.sequence({space_, syntax_.literal(":"), behind_mark});
}

NodeId SchemaCompiler::compile() {
  const NodeId start = value_of(document_.schema(document_.root()));
  define_waiting();
  return satisfied(start);
}

void SchemaCompiler::define_waiting() {
  for (; !waiting_.empty(); waiting_.pop_front()) {
    const size_t place = waiting_.front();
    if (known_[place].node == kUnbounded) value(Terms(known_[place].terms));
  }
}

NodeId SchemaCompiler::none(const Terms& flat, const char* what,
                            std::initializer_list<const char*> keywords) {
  conflict_ = {.what = what, .parts = {}, .required = {}};
  for (const Term term : flat) {
    for (const char* keyword : keywords) {
      if (term.schema->contains(keyword)) conflict_.parts.emplace_back(term.schema, keyword);
    }
  }
  if (conflict_.parts.empty()) conflict_.parts.emplace_back(&owner(flat), nullptr);
  return syntax_.never();
}

// Throws where the whole schema can't be satisfied.
NodeId SchemaCompiler::satisfied(NodeId start) const {
  if (start != syntax_.never()) return start;
  std::vector<std::string> places;
  for (const auto& [schema, keyword] : conflict_.parts) {
    std::string place = document_.path(*schema);
    if (keyword != nullptr) place += fmt::format("/{}", keyword);
    if (schema->is_boolean()) place += place.empty() ? "false" : ", which is false";
    places.push_back(place.empty() ? "it" : place);
  }
  const size_t num_more = places.size() - std::min(places.size(), kMaxConflicts);
  places.resize(places.size() - num_more);
  if (num_more > 0) places.push_back(fmt::format("{} more", num_more));
  std::string last = places.back();
  places.pop_back();
  if (!places.empty()) last = fmt::format("{} and {}", fmt::join(places, ", "), last);
  const std::string& name = conflict_.required;
  throw_error(
      ErrorCode::kInvalidArgument, "the JSON schema can't be satisfied: {}no {} fits {}{}",
      name.empty() ? "" : fmt::format("the property \"{}\" is required, and ", printable(name)),
      conflict_.what, last,
      conflict_.is_last_branch ? ", and other branches can't be satisfied either" : "");
}

// What the schema names where it is nothing but a name: so that is compiled once.
SchemaCompiler::Term SchemaCompiler::named(Term term) {
  while (term.done == 0 && term.schema->is_object() && term.schema->size() == 1 &&
         term.schema->contains("$ref")) {
    refuse_cycles(*term.schema, 0);
    term.schema = &document_.resolve(*term.schema);
  }
  return term;
}

bool SchemaCompiler::is_long(NodeId node) const {
  size_t num_parts = 1;
  for (; num_parts < kManyParts && syntax_.node(node).kind == Node::Kind::kSequence; ++num_parts) {
    node = syntax_.node(node).second;
  }
  return num_parts == kManyParts;
}

// A sequence is copied with what stands behind it. One that comes again becomes a rule, lest what
// is named twice on each level doubles there.
NodeId SchemaCompiler::known_value(Known& known) {
  if (known.node == syntax_.never()) conflict_ = known.conflict;
  if (!known.rule && is_long(known.node)) syntax_.define(rule_of(known), known.node);
  return known.rule ? syntax_.rule(*known.rule) : known.node;
}

RuleId SchemaCompiler::rule_of(Known& known) {
  if (!known.rule) {
    known.rule = syntax_.new_rule(known.terms.empty() ? "JSON schema"
                                                      : document_.where(*known.terms[0].schema));
  }
  return *known.rule;
}

// What is named again is looked at again, with all its keywords, members and values: a short schema
// may take for ever.
void SchemaCompiler::count_steps(const Json& schema, size_t steps) {
  if (syntax_.take_steps(steps)) return;
  throw_error(ErrorCode::kUnsupported,
              "{}: up to here the schema takes too many steps to compile; name large parts less "
              "often, or make them simpler",
              document_.where(schema));
}

void SchemaCompiler::count_merge(const Terms& terms) {
  count_steps(owner(terms), kStepsOfMerge);
  if (++num_merges_ > kMaxMerges) {
    throw_error(ErrorCode::kUnsupported,
                "{}: up to here the schema's allOf, anyOf, oneOf and $ref have more than {} "
                "combinations, which is not supported; make it simpler",
                document_.where(owner(terms)), kMaxMerges);
  }
}

NodeId SchemaCompiler::value(const Terms& terms) {
  Terms its = terms;
  for (Term& term : its) term = named(term);
  Terms key = its;
  std::sort(key.begin(), key.end());
  key.erase(std::unique(key.begin(), key.end()), key.end());
  const auto [found, is_new] = places_.try_emplace(std::move(key), known_.size());
  const size_t place = found->second;
  if (is_new) {
    known_.push_back({.rule = {}, .terms = std::move(its), .conflict = {}});
    count_merge(terms);
  } else if (known_[place].node != kUnbounded) {
    return known_value(known_[place]);
  } else if (depth_ > 0) {
    return syntax_.rule(rule_of(known_[place]));  // it is being compiled, or waits
  }
  if (depth_ == kMaxSchemaCalls) {
    waiting_.push_back(place);
    return syntax_.rule(rule_of(known_[place]));
  }
  ++depth_;
  const NodeId node = build(Terms(known_[place].terms));
  --depth_;
  Known& known = known_[place];
  known.node = node;
  if (node == syntax_.never()) known.conflict = conflict_;
  if (!known.rule) return node;
  syntax_.define(*known.rule, node);
  return syntax_.rule(*known.rule);
}

// A schema that is its own part by $ref, allOf, anyOf or oneOf says nothing.
void SchemaCompiler::refuse_cycles(const Json& schema, int depth) {
  if (!document_.schema(schema).is_object()) return;
  const auto [seen, is_new] = is_grounded_.try_emplace(&schema, false);
  if (!is_new) {
    if (!seen->second) {
      document_.fail(schema, "", "refers to itself without anything in between");
    }
    return;
  }
  if (depth > kMaxReferences) {
    document_.refuse(schema, "$ref",
                     fmt::format("and what it names are more than {} deep", kMaxReferences));
  }
  if (schema.contains("$ref")) refuse_cycles(document_.resolve(schema), depth + 1);
  for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
    const Json* parts = document_.array(schema, keyword);
    if (parts == nullptr) continue;
    for (const Json& part : *parts) refuse_cycles(part, depth + 1);
  }
  is_grounded_[&schema] = true;
}

// Adds the term and what it names by $ref and allOf, those that stand before its properties first:
// so members have the document's order. False: nothing satisfies it.
bool SchemaCompiler::flatten(Term term, Terms& flat) {
  const Json& schema = document_.schema(*term.schema);
  // Each keyword is looked for, and so are the terms that are there.
  count_steps(schema, 1 + schema.size() / 2 + flat.size() / 64);
  if (schema.is_boolean()) {
    if (!schema.get<bool>()) conflict_ = {.parts = {{&schema, nullptr}}, .required = {}};
    return schema.get<bool>();
  }
  const bool is_expanded = (term.done & kParts) != 0;
  term.done |= kParts;
  const auto is_there = [&] { return std::ranges::find(flat, term) != flat.end(); };
  if (is_there()) return true;
  const auto add_itself = [&] {
    if (is_there()) return;
    flat.push_back(term);
    if (flat.size() > kMaxTerms) {
      document_.refuse(schema, "allOf",
                       "and what else speaks of this value has too many parts; make it simpler");
    }
  };
  if (is_expanded) {
    add_itself();
    return true;
  }
  bool can_hold = true;
  for (const auto& [keyword, value] : schema.items()) {
    if (!can_hold) break;
    if (keyword == "properties") {
      add_itself();
    } else if (keyword == "$ref") {
      can_hold = flatten(Term{&document_.resolve(schema)}, flat);
    } else if (keyword == "allOf") {
      for (const Json& part : *document_.array(schema, "allOf")) {
        can_hold = can_hold && flatten(Term{&part}, flat);
      }
    }
  }
  add_itself();
  return can_hold;
}

NodeId SchemaCompiler::build(const Terms& terms) try {
  Terms flat;
  for (const Term term : terms) {
    refuse_cycles(*term.schema, 0);
    if (!flatten(term, flat)) return syntax_.never();
  }
  const std::vector<Terms> ways = branches(flat);
  if (ways.empty()) return typed(flat, types(flat));
  std::vector<NodeId> nodes;
  nodes.reserve(ways.size());
  for (const Terms& way : ways) nodes.push_back(value(way));
  const NodeId node = syntax_.choice(nodes);
  if (node == syntax_.never() && ways.size() > 1) conflict_.is_last_branch = true;
  return node;
} catch (const TooManyRules&) {
  throw_error(ErrorCode::kInvalidArgument,
              "{}: up to here the schema needs more than {} MiB of rules; name large parts less "
              "often, or make them simpler",
              document_.where(owner(terms)), kMaxSyntaxBytes >> 20);
}

// What the first anyOf or oneOf leaves; none: there is neither.
std::vector<SchemaCompiler::Terms> SchemaCompiler::branches(const Terms& flat) {
  for (size_t i = 0; i < flat.size(); ++i) {
    for (const uint8_t which : {kAnyOf, kOneOf}) {
      const char* const keyword = which == kAnyOf ? "anyOf" : "oneOf";
      if ((flat[i].done & which) == 0 && flat[i].schema->contains(keyword)) {
        return branches(flat, i, which);
      }
    }
  }
  return {};
}

std::vector<SchemaCompiler::Terms> SchemaCompiler::branches(const Terms& flat, size_t index,
                                                            uint8_t which) {
  const char* const keyword = which == kAnyOf ? "anyOf" : "oneOf";
  const Json& schema = *flat[index].schema;
  const Json& list = *document_.array(schema, keyword);
  if (list.empty()) document_.fail(schema, keyword, "is an empty list");
  if (which == kOneOf) note_overlap(schema, list);
  // Its members come before those of the properties that stand behind it.
  size_t place = index + 1;
  for (const auto& [name, value] : schema.items()) {
    if (name == keyword) place = index;
    if (name == keyword || name == "properties") break;
  }
  count_steps(schema, list.size() * (flat.size() + 1));
  std::vector<Terms> ways;
  for (const Json& branch : list) {
    Terms& terms = ways.emplace_back(flat);
    terms[index].done |= which;
    terms.insert(terms.begin() + static_cast<std::ptrdiff_t>(place), Term{&branch});
  }
  return ways;
}

uint8_t SchemaCompiler::type_of_name(const Json& schema, const Json& name) const {
  static const std::map<std::string, uint8_t> kTypes = {
      {"null", kNull},       {"boolean", kBoolean},
      {"integer", kInteger}, {"number", kNumber | kInteger},
      {"string", kString},   {"array", kArray},
      {"object", kObject}};
  const auto found = name.is_string() ? kTypes.find(name.get<std::string>()) : kTypes.end();
  if (found == kTypes.end()) {
    document_.fail(schema, "type",
                   fmt::format("is {}, which is no type", shown(nlohmann::json(name))));
  }
  return found->second;
}

uint8_t SchemaCompiler::types(const Terms& flat) const {
  uint8_t all = kAllTypes;
  for (const Term term : flat) {
    const Json* type = document_.find(*term.schema, "type");
    if (type == nullptr) continue;
    uint8_t its = 0;
    if (type->is_array()) {
      for (const Json& name : *type) its |= type_of_name(*term.schema, name);
    } else {
      its = type_of_name(*term.schema, *type);
    }
    all &= its;
  }
  return all;
}

void SchemaCompiler::refuse_unsupported(const Json& schema, uint8_t types) const {
  const auto refuse = [&](const char* keyword) {
    if (schema.contains(keyword)) document_.refuse(schema, keyword);
  };
  refuse("not");
  refuse("$dynamicRef");
  refuse("$recursiveRef");
  if (schema.contains("then") || schema.contains("else")) refuse("if");
  const auto is_narrow = [&](const char* keyword) {
    const auto found = schema.find(keyword);
    return found != schema.end() && !(found->is_boolean() && found->get<bool>()) &&
           !(found->is_object() && found->empty());
  };
  if ((types & kArray) != 0) {
    refuse("contains");
    const auto unique = schema.find("uniqueItems");
    if (unique != schema.end() && !(unique->is_boolean() && !unique->get<bool>())) {
      refuse("uniqueItems");
    }
    if (is_narrow("unevaluatedItems")) refuse("unevaluatedItems");
  }
  if ((types & kObject) != 0) {
    for (const char* keyword :
         {"dependencies", "dependentRequired", "dependentSchemas", "unevaluatedProperties"}) {
      if (is_narrow(keyword)) refuse(keyword);
    }
  }
}

NodeId SchemaCompiler::typed(const Terms& flat, uint8_t types) {
  for (const Term term : flat) refuse_unsupported(*term.schema, types);
  if (types == 0) return none(flat, "type", {"type"});
  if (const auto texts = listed(flat, types)) {
    if (*texts != syntax_.never()) return *texts;
    return none(flat, "value",
                {"type", "enum", "const", "minimum", "maximum", "exclusiveMinimum",
                 "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern", "format"});
  }
  std::vector<NodeId> ways;
  if ((types & kNull) != 0) ways.push_back(syntax_.literal("null"));
  if ((types & kBoolean) != 0) {
    ways.push_back(syntax_.literal("true"));
    ways.push_back(syntax_.literal("false"));
  }
  if ((types & (kInteger | kNumber)) != 0) {
    ways.push_back(number(flat, (types & kNumber) == 0));
    if (ways.back() == syntax_.never()) {
      none(flat, "number of up to 32 digits before and behind the point",
           {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"});
    }
  }
  if ((types & kString) != 0) {
    ways.push_back(string(flat));
    if (ways.back() == syntax_.never()) no_string(flat);
  }
  if ((types & kArray) != 0) ways.push_back(array(flat));
  if ((types & kObject) != 0) ways.push_back(object(flat));
  return syntax_.choice(ways);
}

}  // namespace nanovllm::grammar
