// Members of an object that is not written as JSON: tags around each, strings as they are.
#include <algorithm>

#include "base/check.h"
#include "grammar/regex.h"
#include "grammar/schema_compiler.h"
#include "io/json.h"

namespace nanovllm::grammar {

NodeId SchemaCompiler::compile_members(const MemberStyle& style) {
  std::vector<Terms> ways;
  leaves({Term{&document_.schema(document_.root())}}, ways);
  std::vector<NodeId> nodes;
  for (const Terms& flat : ways) {
    if ((types(flat) & kObject) == 0) {
      none(flat, "object", {"type"});
      continue;
    }
    for (const Term term : flat) refuse_unsupported(*term.schema, kObject);
    if (listed_values(flat, kObject)) {
      document_.refuse(*flat[0].schema, "enum", "of whole objects can't be enforced here");
    }
    ObjectParts parts = parts_of(flat);
    if (parts.min > parts.max) {
      none(flat, "object", {"minProperties", "maxProperties"});
      continue;
    }
    if (parts.names.empty() && !is_closed(flat)) {
      parts.further.push_back(further_member(flat, parts, style));
    }
    nodes.push_back(members(flat, parts, &style));
  }
  define_waiting();
  return satisfied(syntax_.choice(nodes));
}

// What anyOf and oneOf leave, flat.
void SchemaCompiler::leaves(const Terms& terms, std::vector<Terms>& out) {
  count_merge(terms);
  Terms flat;
  for (const Term term : terms) {
    refuse_cycles(*term.schema, 0);
    if (!flatten(term, flat)) return;
  }
  const std::vector<Terms> ways = branches(flat);
  if (ways.empty()) out.push_back(std::move(flat));
  for (const Terms& way : ways) leaves(way, out);
}

// Of a value whose schema says nothing of it: a string where they need no quotes, as those who read
// the calls take it.
uint8_t SchemaCompiler::told_types(const Terms& flat, const MemberStyle& style) {
  const uint8_t its = types(flat);
  if (const auto values = listed_values(flat, its)) {
    uint8_t told = 0;
    for (const Json* value : *values) told |= type_of_value(*value);
    return told;
  }
  return its == kAllTypes && style.has_plain_strings ? uint8_t{kString} : its;
}

NodeId SchemaCompiler::named_member(const std::string& name, const Terms& terms,
                                    const MemberStyle& style) {
  if (!style.is_key(name)) {
    throw_error(ErrorCode::kUnsupported,
                "the JSON schema has the property \"{}\", a name that the model's calls can't "
                "spell",
                printable(name));
  }
  return syntax_.sequence({style.before_key, syntax_.literal(name), style.behind_key,
                           member_value(terms, style), style.behind_value});
}

// Of an object that names none: names of any kind.
NodeId SchemaCompiler::further_member(const Terms& flat, const ObjectParts& parts,
                                      const MemberStyle& style) {
  if (!parts.patterns.empty() || !parts.key_languages.empty()) {
    document_.refuse(*flat[0].schema, "patternProperties", "can't be enforced here");
  }
  const NodeId key = compile_regex(style.further_keys, syntax_);
  const NodeId value = member_value(further_value(flat, parts, 0), style);
  return syntax_.sequence({style.before_key, key, style.behind_key, value, style.behind_value});
}

NodeId SchemaCompiler::member_value(const Terms& terms, const MemberStyle& style) {
  std::vector<Terms> ways;
  leaves(terms, ways);
  uint8_t all = 0;
  for (const Terms& flat : ways) all |= told_types(flat, style);
  std::vector<NodeId> nodes;
  if (all == 0 && !ways.empty()) return none(ways[0], "value", {"type", "enum", "const"});
  for (const Terms& flat : ways) {
    uint8_t its = told_types(flat, style);
    if ((its & kString) != 0 && style.has_plain_strings) {
      nodes.push_back(plain_string(flat, all & ~kString));
      if (nodes.back() == syntax_.never()) no_string(flat);
      its &= ~kString;
    }
    if (its == 0) continue;
    nodes.push_back(typed(flat, its));
    // As Python prints them, which templates do.
    if (listed_values(flat, its)) continue;
    if ((its & kNull) != 0) nodes.push_back(syntax_.literal("None"));
    if ((its & kBoolean) != 0) {
      nodes.push_back(syntax_.literal("True"));
      nodes.push_back(syntax_.literal("False"));
    }
  }
  return syntax_.choice(nodes);
}

// Where it may be of `others` too, it does not begin as these do.
NodeId SchemaCompiler::plain_string(const Terms& flat, uint8_t others) {
  for (const Term term : flat) refuse_unsupported(*term.schema, kString);
  if (const auto values = listed_values(flat, kString)) {
    std::vector<std::string> texts;
    for (const Json* value : *values) {
      const std::string text = value->get<std::string>();
      if (std::ranges::none_of(excluded_, [&](const std::string& excluded) {
            return text.find(excluded) != text.npos;
          })) {
        texts.push_back(text);
      }
    }
    return syntax_.choice_of_texts(std::move(texts));
  }
  auto [length, texts] = string_bounds(flat);
  if (length.min > length.max) return syntax_.never();
  if (others != 0) {
    std::string first = " \\t\\r\\n";
    if ((others & kObject) != 0) first += "{";
    if ((others & kArray) != 0) first += "\\[";
    if ((others & (kNumber | kInteger)) != 0) first += "0-9\\-";
    texts.push_back({fmt::format("([^{}][\\s\\S]*)?", first), false, "a string"});
  }
  const auto [known, is_new] =
      strings_.try_emplace(key_of("plain", length, texts), syntax_.never());
  if (!is_new) return known->second;
  ByteDfa all = text_without(excluded_);
  if (!texts.empty() || length.is_bounded()) {
    std::vector<const StringLanguage*> languages;
    languages.reserve(texts.size());
    for (const Text& text : texts) languages.push_back(&language(text, Spelling::kText));
    const uint32_t every = (1u << languages.size()) - 1;
    const StringProduct product(languages, texts.empty() ? "a string" : texts[0].where, all);
    auto dfa =
        product.accepting([every](uint32_t membership) { return membership == every; }, length);
    count_product(flat, product.size(), length);
    if (!dfa) return syntax_.never();
    all = std::move(*dfa);
  }
  known->second = syntax_.dfa(std::move(all));
  return known->second;
}

}  // namespace nanovllm::grammar
