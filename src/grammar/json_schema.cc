#include "grammar/json_schema.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "grammar/regex.h"
#include "grammar/schema_compiler.h"
#include "io/json.h"

namespace nanovllm::grammar {
namespace {

constexpr size_t kMaxMerges = 10'000;  // sets of schemas that are looked at
constexpr int kMaxSchemaCalls = 64;    // one in another; what is deeper waits
constexpr int kMaxReferences = 500;    // one after the other
constexpr uint32_t kMaxBlanks = 64;    // behind a newline

std::string json_text(std::string_view text) {
  return fmt::format("\"{}\"", spell_text(text, Spelling::kCanonical));
}

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
    space_ = behind_mark =
        compile_regex(*options_.whitespace_pattern, syntax_, {.where = "whitespace_pattern"});
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
  return start;
}

void SchemaCompiler::define_waiting() {
  for (; !waiting_.empty(); waiting_.pop_front()) {
    const size_t place = waiting_.front();
    if (known_[place].node == kUnbounded) value(Terms(known_[place].terms));
  }
}

RuleId SchemaCompiler::rule_of(Known& known) {
  if (!known.rule) {
    known.rule = syntax_.new_rule(known.terms.empty() ? "JSON schema"
                                                      : document_.where(*known.terms[0].schema));
  }
  return *known.rule;
}

void SchemaCompiler::count_merge() {
  if (++num_merges_ > kMaxMerges) {
    throw_error(ErrorCode::kUnsupported,
                "the JSON schema's allOf, anyOf, oneOf and $ref have more than {} combinations, "
                "which is not supported; make it simpler",
                kMaxMerges);
  }
}

NodeId SchemaCompiler::value(const Terms& terms) {
  Terms key = terms;
  std::sort(key.begin(), key.end());
  key.erase(std::unique(key.begin(), key.end()), key.end());
  const auto [found, is_new] = places_.try_emplace(std::move(key), known_.size());
  const size_t place = found->second;
  if (is_new) {
    known_.push_back({.rule = {}, .terms = terms});
    count_merge();
  } else if (known_[place].node != kUnbounded) {
    return known_[place].rule ? syntax_.rule(*known_[place].rule) : known_[place].node;
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
  if (schema.is_boolean()) return schema.get<bool>();
  const bool is_expanded = (term.done & kParts) != 0;
  term.done |= kParts;
  const auto add_itself = [&] {
    if (std::ranges::find(flat, term) == flat.end()) flat.push_back(term);
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

NodeId SchemaCompiler::build(const Terms& terms) {
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
  return syntax_.choice(nodes);
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
  std::vector<Terms> ways;
  for (const Json& branch : list) {
    Terms& terms = ways.emplace_back(flat);
    terms[index].done |= which;
    terms.insert(terms.begin() + static_cast<std::ptrdiff_t>(place), Term{&branch});
  }
  return ways;
}

// Branches of different types, or that have different constants for one property, are apart.
void SchemaCompiler::note_overlap(const Json& schema, const Json& branches) {
  uint8_t seen = 0;
  std::set<std::string> constants;
  bool are_typed = true, are_told = true;
  for (const Json& branch : branches) {
    const Json* target = &branch;
    if (branch.is_object() && branch.contains("$ref")) target = &document_.resolve(branch);
    uint8_t its_types = kAllTypes;
    if (target->is_object() && target->contains("type")) its_types = types(Terms{Term{target}});
    are_typed = are_typed && (seen & its_types) == 0;
    seen |= its_types;
    bool is_told = false;
    if (target->is_object()) {
      for (const char* keyword : {"const", "enum"}) {
        if (!target->contains(keyword)) continue;
        const Json& values = (*target)[keyword];
        is_told = constants.insert(values.dump()).second;
      }
      if (target->contains("properties") && (*target)["properties"].is_object()) {
        for (const auto& [name, property] : (*target)["properties"].items()) {
          if (!property.is_object()) continue;
          if (const auto value = property.find("const"); value != property.end()) {
            is_told = is_told || constants.insert(name + "=" + value->dump()).second;
          }
          if (const auto value = property.find("enum");
              value != property.end() && value->is_array() && value->size() == 1) {
            is_told = is_told || constants.insert(name + "=" + value->at(0).dump()).second;
          }
        }
      }
    }
    are_told = are_told && is_told;
  }
  if (are_typed || are_told) return;
  const std::string note =
      document_.where(schema) + ": branches of oneOf may overlap; it is taken for anyOf";
  if (noted_.insert(note).second) notes_.push_back(note);
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

uint8_t SchemaCompiler::type_of_value(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return kNull;
    case Json::value_t::boolean:
      return kBoolean;
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return kInteger;
    case Json::value_t::number_float: {
      const double number = value.get<double>();
      return number == std::floor(number) ? kInteger : kNumber;
    }
    case Json::value_t::string:
      return kString;
    case Json::value_t::array:
      return kArray;
    case Json::value_t::object:
      return kObject;
    default:
      return 0;
  }
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
  if (const auto texts = listed(flat, types)) return *texts;
  std::vector<NodeId> ways;
  if ((types & kNull) != 0) ways.push_back(syntax_.literal("null"));
  if ((types & kBoolean) != 0) {
    ways.push_back(syntax_.literal("true"));
    ways.push_back(syntax_.literal("false"));
  }
  if ((types & (kInteger | kNumber)) != 0) ways.push_back(number(flat, (types & kNumber) == 0));
  if ((types & kString) != 0) ways.push_back(string(flat));
  if ((types & kArray) != 0) ways.push_back(array(flat));
  if ((types & kObject) != 0) ways.push_back(object(flat));
  return syntax_.choice(ways);
}

std::optional<std::vector<const Json*>> SchemaCompiler::listed_values(const Terms& flat,
                                                                      uint8_t types) {
  std::optional<std::vector<const Json*>> values;
  const auto equals = [](const Json& a, const Json& b) {
    return nlohmann::json(a) == nlohmann::json(b);
  };
  const auto keep = [&](const std::vector<const Json*>& others) {
    if (!values) {
      values = others;
      return;
    }
    std::erase_if(*values, [&](const Json* value) {
      return std::ranges::none_of(others,
                                  [&](const Json* other) { return equals(*value, *other); });
    });
  };
  bool has_more = false;
  for (const Term term : flat) {
    const Json& schema = *term.schema;
    if ((term.done & kValues) == 0) {
      if (const Json* constant = document_.find(schema, "const")) keep({constant});
      if (const Json* list = document_.array(schema, "enum")) {
        std::vector<const Json*> others;
        for (const Json& value : *list) others.push_back(&value);
        keep(others);
      }
    }
    for (const char* keyword : {"minimum",
                                "maximum",
                                "exclusiveMinimum",
                                "exclusiveMaximum",
                                "multipleOf",
                                "minLength",
                                "maxLength",
                                "pattern",
                                "format",
                                "items",
                                "prefixItems",
                                "additionalItems",
                                "minItems",
                                "maxItems",
                                "properties",
                                "required",
                                "additionalProperties",
                                "patternProperties",
                                "propertyNames",
                                "minProperties",
                                "maxProperties"}) {
      has_more = has_more || schema.contains(keyword);
    }
  }
  if (values) {
    std::erase_if(*values, [&](const Json* value) {
      return (type_of_value(*value) & types) == 0 || (has_more && !allows(flat, *value));
    });
  }
  return values;
}

std::optional<NodeId> SchemaCompiler::listed(const Terms& flat, uint8_t types) {
  const auto values = listed_values(flat, types);
  if (!values) return std::nullopt;
  std::vector<NodeId> ways;
  std::vector<std::string> texts;
  for (const Json* value : *values) {
    if (value->is_string()) {
      texts.push_back(json_text(value->get<std::string>()));
    } else {
      ways.push_back(constant(*value));
    }
  }
  ways.push_back(syntax_.choice_of_texts(std::move(texts)));
  return syntax_.choice(ways);
}

// Whether the terms allow a value that one of them lists.
bool SchemaCompiler::allows(const Terms& flat, const Json& candidate) {
  Terms rest = flat;
  for (Term& term : rest) term.done |= kValues;
  Syntax syntax;
  std::vector<std::string> notes;
  SchemaCompiler other(document_, options_, syntax, notes);
  const NodeId typed = other.typed(rest, type_of_value(candidate));
  other.define_waiting();
  const NodeId start = syntax.finish(typed);
  if (start == syntax.never()) return false;
  constexpr size_t kMaxBytes = size_t{16} << 20;
  Automaton automaton(syntax, start, kMaxBytes);
  std::string text =
      candidate.is_string() ? json_text(candidate.get<std::string>()) : candidate.dump();
  return automaton.is_accepting(automaton.advance(kStart, text));
}

NodeId SchemaCompiler::quoted(std::string_view text) { return syntax_.literal(json_text(text)); }

NodeId SchemaCompiler::constant(const Json& value) {
  if (value.is_string()) return quoted(value.get<std::string>());
  if (value.is_number_float()) {
    const double number = value.get<double>();
    NodeId as_written = syntax_.literal(value.dump());
    if (number != std::floor(number) || std::abs(number) > 1e15) return as_written;
    return syntax_.choice({as_written, syntax_.literal(fmt::format("{:.0f}", number))});
  }
  if (!value.is_structured()) return syntax_.literal(value.dump());
  const bool is_list = value.is_array();
  if (value.empty()) {
    return syntax_.sequence(
        {syntax_.literal(is_list ? "[" : "{"), space_, syntax_.literal(is_list ? "]" : "}")});
  }
  std::vector<NodeId> parts = {syntax_.literal(is_list ? "[" : "{"), space_};
  bool is_first = true;
  for (const auto& [name, member] : value.items()) {
    if (!is_first) parts.push_back(comma_);
    is_first = false;
    if (!is_list) {
      parts.push_back(quoted(name));
      parts.push_back(colon_);
    }
    parts.push_back(constant(member));
  }
  parts.push_back(space_);
  parts.push_back(syntax_.literal(is_list ? "]" : "}"));
  return syntax_.sequence(parts);
}

}  // namespace nanovllm::grammar
