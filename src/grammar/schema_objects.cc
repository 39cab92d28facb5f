// Objects of JSON Schema: members in the schema's order, then those that it does not name.
#include <algorithm>
#include <unordered_set>

#include "base/check.h"
#include "grammar/schema_compiler.h"
#include "io/json.h"

namespace nanovllm::grammar {
namespace {

constexpr size_t kMaxPlaces = 50'000;     // members by how many were written before
constexpr size_t kMaxNameBytes = 60'000;  // as it is spelled in JSON
constexpr size_t kMaxPatterns = 29;       // of keys: a product has 31, with names and exclusions
constexpr size_t kStepsOfName = 6;        // and as many for each pattern that it is held against
constexpr size_t kStepsOfPlace = 8;
constexpr size_t kMaxNamedKeys = 30;  // keys of a pattern that are named one by one

}  // namespace

// Whether objects have no members but those that are named or match a pattern, though nothing says
// so. An object of which nothing is said stays as it is.
bool SchemaCompiler::is_closed(const Terms& flat) const {
  const auto has = [&flat](const char* keyword) {
    return std::ranges::any_of(flat,
                               [=](const Term term) { return term.schema->contains(keyword); });
  };
  return options_.disable_additional_properties && !has("additionalProperties") &&
         (has("properties") || has("patternProperties"));
}

SchemaCompiler::ObjectParts SchemaCompiler::parts_of(const Terms& flat) {
  ObjectParts parts;
  parts.owner = &owner(flat);
  std::unordered_set<std::string> names, required;
  std::vector<Properties> properties;
  const auto add_name = [&](const Json& schema, const std::string& name) {
    if (spell_text(name, Spelling::kCanonical).size() > kMaxNameBytes) {
      document_.fail(schema, "properties",
                     fmt::format("has a name of more than {} bytes in JSON", kMaxNameBytes));
    }
    if (names.insert(name).second) parts.names.push_back(name);
  };
  for (const Term term : flat) {
    const Json& schema = *term.schema;
    properties.emplace_back();
    if (const Json* its = document_.object(schema, "properties")) {
      for (const auto& [name, property] : its->items()) {
        add_name(schema, name);
        properties.back().emplace(name, &property);
      }
    }
    if (const Json* patterns = document_.object(schema, "patternProperties")) {
      for (const auto& [regex, property] : patterns->items()) {
        const Text text = {regex, true, document_.where(schema) + ": patternProperties"};
        parts.patterns.push_back({&schema, &language(text), &property});
      }
    }
    parts.min = std::max(parts.min, document_.count(schema, "minProperties").value_or(0));
    parts.max = std::min(parts.max, document_.count(schema, "maxProperties").value_or(kUnbounded));
    add_key_languages(schema, parts);
  }
  for (const Term term : flat) {
    const Json* list = document_.find(*term.schema, "required");
    if (list == nullptr || list->is_boolean()) continue;  // a boolean in draft 3
    if (!list->is_array()) document_.fail(*term.schema, "required", "is not a list");
    count_steps(*term.schema, kStepsOfName * list->size());
    for (const Json& name : *list) {
      if (!name.is_string()) document_.fail(*term.schema, "required", "has what is no string");
      required.insert(name.get<std::string>());
      add_name(*term.schema, name.get<std::string>());
    }
  }
  if (parts.patterns.size() + parts.key_languages.size() > kMaxPatterns) {
    document_.refuse(*flat[0].schema, "patternProperties",
                     fmt::format("are more than {} patterns", kMaxPatterns));
  }
  count_steps(*parts.owner, parts.names.size() * flat.size() +
                                parts.names.size() * kStepsOfName * (1 + parts.patterns.size()));
  for (const std::string& name : parts.names) {
    parts.is_required.push_back(required.contains(name) ? 1 : 0);
    parts.values.push_back(named_value(flat, parts, properties, name));
  }
  return parts;
}

// propertyNames: patterns, formats, lengths and lists of names.
void SchemaCompiler::add_key_languages(const Json& schema, ObjectParts& parts) {
  const Json* names = document_.find(schema, "propertyNames");
  if (names == nullptr) return;
  document_.schema(*names);
  if (names->is_boolean()) {
    if (!names->get<bool>()) parts.max = 0;
    return;
  }
  Terms flat;
  refuse_cycles(*names, 0);
  if (!flatten(Term{names}, flat)) {
    parts.max = 0;
    return;
  }
  for (const Term term : flat) {
    for (const auto& [keyword, ignored] : term.schema->items()) {
      static const std::set<std::string> kKnown = {
          "pattern",  "format",  "minLength", "maxLength",   "enum",  "const",
          "type",     "$ref",    "allOf",     "description", "title", "$comment",
          "examples", "default", "$id",       "$schema"};
      if (!kKnown.contains(keyword)) {
        document_.refuse(*term.schema, keyword, "of names can't be enforced");
      }
    }
    if ((types(Terms{term}) & kString) == 0) parts.max = 0;
    for (const Text& text : texts_of(*term.schema)) parts.key_languages.push_back(&language(text));
    const LengthBounds length = length_of(*term.schema);
    if (length.is_bounded()) {
      if (length.min > length.max) {
        parts.max = 0;
        continue;
      }
      parts.key_languages.push_back(&language(fmt::format("l{} {}", length.min, length.max),
                                              [&] { return StringLanguage::of_length(length); }));
    }
    for (const char* keyword : {"enum", "const"}) {
      const Json* values = document_.find(*term.schema, keyword);
      if (values == nullptr) continue;
      std::vector<std::string> texts;
      const auto add = [&texts](const Json& value) {
        if (value.is_string()) texts.push_back(value.get<std::string>());
      };
      if (keyword == std::string_view("const")) {
        add(*values);
      } else {
        for (const Json& value : *values) add(value);
      }
      count_steps(*term.schema, kStepsOfName * texts.size());
      if (parts.listed_keys.empty()) parts.listed_keys = texts;
      parts.key_languages.push_back(&language(fmt::format("t{}", values->dump()),
                                              [&] { return StringLanguage::of_texts(texts); }));
    }
  }
}

SchemaCompiler::Terms SchemaCompiler::named_value(const Terms& flat, const ObjectParts& parts,
                                                  const std::vector<Properties>& properties,
                                                  const std::string& name) const {
  Terms terms;
  for (size_t i = 0; i < flat.size(); ++i) {
    const Json* const schema = flat[i].schema;
    const auto property = properties[i].find(name);
    bool is_known = property != properties[i].end();
    if (is_known) terms.push_back(Term{property->second});
    for (const Pattern& pattern : parts.patterns) {
      if (pattern.owner != schema || !pattern.language->contains(name)) continue;
      terms.push_back(Term{pattern.schema});
      is_known = true;
    }
    const Json* others = document_.find(*schema, "additionalProperties");
    if (!is_known && others != nullptr) terms.push_back(Term{others});
  }
  return terms;
}

// Of members that no schema names and that match these patterns, one bit each.
SchemaCompiler::Terms SchemaCompiler::further_value(const Terms& flat, const ObjectParts& parts,
                                                    uint32_t patterns) const {
  Terms terms;
  for (const Term term : flat) {
    bool is_known = false;
    for (size_t i = 0; i < parts.patterns.size(); ++i) {
      if (parts.patterns[i].owner != term.schema || (patterns >> i & 1) == 0) continue;
      terms.push_back(Term{parts.patterns[i].schema});
      is_known = true;
    }
    const Json* others = document_.find(*term.schema, "additionalProperties");
    if (!is_known && others != nullptr) terms.push_back(Term{others});
  }
  return terms;
}

// A key that comes twice is one member for who reads it. Where more members are needed than those
// that are required, and one, keys of which there are few become names: so each comes once at most.
// False: there are many. Then nothing keeps them apart.
bool SchemaCompiler::name_few(const ByteDfa& keys, const Terms& value, ObjectParts& parts) {
  if (parts.min < std::ranges::count(parts.is_required, 1) + 2) return false;
  auto texts = few_texts(keys, kMaxNamedKeys);
  if (!texts) return false;
  // As propertyNames lists them, else by the alphabet.
  std::ranges::sort(*texts);
  std::ranges::stable_sort(*texts, {}, [&](const std::string& text) {
    return std::ranges::find(parts.listed_keys, text) - parts.listed_keys.begin();
  });
  for (std::string& text : *texts) {
    parts.names.push_back(std::move(text));
    parts.values.push_back(value);
    parts.is_required.push_back(0);
  }
  return true;
}

std::vector<NodeId> SchemaCompiler::further_members(const Terms& flat, ObjectParts& parts) {
  std::vector<NodeId> members;
  const NodeId quote = syntax_.literal("\"");
  std::vector<const StringLanguage*> keys = parts.key_languages;
  if (!excluded_.empty()) keys.push_back(&without_excluded());
  if (parts.patterns.empty() && keys.empty()) {
    if (is_closed(flat)) return members;
    const NodeId node = value(further_value(flat, parts, 0));
    Names names;
    for (const std::string& name : parts.names) {
      names.push_back(spell_text(name, Spelling::kCanonical));
    }
    members.push_back(syntax_.sequence({quote, syntax_.except(std::move(names)), colon_, node}));
    return members;
  }
  const std::string where = document_.where(owner(flat));
  std::vector<const StringLanguage*> languages;
  for (const Pattern& pattern : parts.patterns) languages.push_back(pattern.language);
  languages.insert(languages.end(), keys.begin(), keys.end());
  const StringLanguage named = StringLanguage::of_texts(parts.names);
  languages.push_back(&named);
  const size_t num_patterns = parts.patterns.size(), num_keys = keys.size();
  const uint32_t of_patterns = (1u << num_patterns) - 1;
  const uint32_t of_keys = ((1u << num_keys) - 1) << num_patterns;
  const uint32_t of_names = 1u << (num_patterns + num_keys);
  const bool needs_pattern = is_closed(flat);
  StringProduct product(languages, where);
  count_product(flat, product.size());
  // Names by the patterns that they match: all that match the same have one value.
  std::map<NodeId, std::vector<uint32_t>> by_value;
  for (const uint32_t membership : product.memberships()) {
    if ((membership & of_keys) != of_keys || (membership & of_names) != 0) continue;
    if (needs_pattern && (membership & of_patterns) == 0) continue;
    by_value[value(further_value(flat, parts, membership & of_patterns))].push_back(membership);
  }
  for (const auto& entry : by_value) {
    const NodeId node = entry.first;
    const std::vector<uint32_t>& accepted = entry.second;
    if (node == syntax_.never()) continue;
    const auto is_accepted = [&accepted](uint32_t membership) {
      return std::ranges::find(accepted, membership) != accepted.end();
    };
    auto dfa = product.accepting(is_accepted, {});
    if (dfa && !name_few(*dfa, further_value(flat, parts, accepted[0] & of_patterns), parts)) {
      members.push_back(syntax_.sequence({quote, syntax_.dfa(std::move(*dfa)), colon_, node}));
    }
  }
  return members;
}

NodeId SchemaCompiler::object(const Terms& flat) {
  ObjectParts parts = parts_of(flat);
  if (parts.min > parts.max) {
    return none(flat, "object", {"minProperties", "maxProperties", "propertyNames"});
  }
  parts.further = further_members(flat, parts);
  return members(flat, parts, nullptr);
}

// Without those that can't be; none: one of these is required.
std::optional<SchemaCompiler::NamedMembers> SchemaCompiler::named_members(
    const Terms& flat, const ObjectParts& parts, const MemberStyle* style) {
  NamedMembers members;
  for (size_t i = 0; i < parts.names.size(); ++i) {
    const bool has_key = std::ranges::all_of(
        parts.key_languages, [&](const auto* keys) { return keys->contains(parts.names[i]); });
    NodeId node = syntax_.never();
    if (!has_key) none(flat, "key", {"propertyNames"});
    if (has_key && style == nullptr) {
      node = syntax_.sequence({quoted(parts.names[i]), colon_, value(parts.values[i])});
    } else if (has_key) {
      node = named_member(parts.names[i], parts.values[i], *style);
    }
    if (node == syntax_.never()) {
      if (parts.is_required[i] == 0) continue;
      if (conflict_.required.empty()) conflict_.required = parts.names[i];
      return std::nullopt;
    }
    members.nodes.push_back(node);
    members.is_required.push_back(parts.is_required[i]);
  }
  return members;
}

NodeId SchemaCompiler::members(const Terms& flat, const ObjectParts& parts,
                               const MemberStyle* style) {
  const auto all_named = named_members(flat, parts, style);
  if (!all_named) return syntax_.never();
  const auto& [named, is_required] = *all_named;
  const size_t num_required = std::ranges::count(is_required, 1);
  const NodeId further = syntax_.choice(parts.further);
  if (num_required > parts.max) return none(flat, "object", {"required", "maxProperties"});
  // How many were written matters up to `cap`, where there is a bound.
  const bool is_bounded_above =
      parts.max != kUnbounded && (further != syntax_.never() || parts.max < named.size());
  const uint32_t least = parts.min > num_required ? parts.min : 0;
  const uint32_t cap = is_bounded_above ? parts.max : least;
  const size_t width = std::min<size_t>(cap, named.size()) + 1;
  if (width * (named.size() + 1) > kMaxPlaces) {
    throw_error(ErrorCode::kUnsupported, "{}: an object with {} properties{} is not supported; {}",
                document_.where(*parts.owner), named.size(),
                cap > 0 ? fmt::format(" and a minProperties or maxProperties of {}", cap) : "",
                cap > 0 ? "leave the bound out" : "make it simpler");
  }
  const auto left = [&](uint32_t count, size_t written) {
    return count == kUnbounded ? count
                               : static_cast<uint32_t>(count - std::min<size_t>(count, written));
  };
  count_steps(*parts.owner, kStepsOfPlace * width * (named.size() + 1));
  const uint32_t most = is_bounded_above ? parts.max : kUnbounded;
  const NodeId comma = style == nullptr ? comma_ : style->between;
  const NodeId close =
      style == nullptr ? syntax_.sequence({space_, syntax_.literal("}")}) : syntax_.empty();
  // Behind the i-th of the named ones, with so many written, at least one: the comma and another
  // member, or the end. And what stands behind a comma or the opening brace.
  std::vector<NodeId> behind(width), member(width), next_behind(width), next_member(width);
  for (size_t written = 0; written < width; ++written) {
    const uint32_t min = left(least, written), max = left(most, written);
    const NodeId more = syntax_.repeat(syntax_.sequence({comma, further}), min, max);
    behind[written] = syntax_.sequence({more, close});
    member[written] = max == 0
                          ? syntax_.never()
                          : syntax_.sequence({further,
                                              syntax_.repeat(syntax_.sequence({comma, further}),
                                                             left(min, 1), left(max, 1)),
                                              close});
  }
  bool is_rest_optional = true;
  for (size_t i = named.size(); i-- > 0;) {
    is_rest_optional = is_rest_optional && is_required[i] == 0;
    for (size_t written = 0; written < width; ++written) {
      const size_t more = std::min(written + 1, width - 1);
      const bool is_full = is_bounded_above && written >= parts.max;
      const NodeId its = is_full ? syntax_.never() : syntax_.sequence({named[i], behind[more]});
      next_member[written] = is_required[i] != 0 ? its : syntax_.either(its, member[written]);
      const NodeId goes_on = syntax_.sequence({comma, next_member[written]});
      next_behind[written] =
          is_rest_optional && written >= least ? syntax_.either(goes_on, close) : goes_on;
    }
    behind.swap(next_behind);
    member.swap(next_member);
  }
  NodeId some = member[0], none_of_it = close;
  if (style == nullptr) {
    some = syntax_.sequence({syntax_.literal("{"), space_, some});
    none_of_it = syntax_.sequence({syntax_.literal("{"), none_of_it});
  }
  if (is_rest_optional && least == 0) return syntax_.choice({none_of_it, some});
  if (some != syntax_.never()) return some;
  return none(flat, "object",
              {"minProperties", "maxProperties", "properties", "patternProperties",
               "additionalProperties", "propertyNames"});
}

}  // namespace nanovllm::grammar
