// enum and const: the values that are listed, as far as the schema's other parts allow them.
#include <cmath>
#include <map>
#include <unordered_set>

#include "base/check.h"
#include "grammar/schema_compiler.h"
#include "text/utf8.h"

namespace nanovllm::grammar {
namespace {

constexpr size_t kStepsOfValue = 4;

std::string json_text(std::string_view text) {
  return fmt::format("\"{}\"", spell_text(text, Spelling::kCanonical));
}

// Equal values have equal ones: 1.0 is 1, and the order of an object's members says nothing.
std::string canonical(const Json& value) {
  if (value.is_number()) {
    const Decimal decimal = decimal_of(value);
    return fmt::format("{}{}.{}", decimal.is_negative ? "-" : "", decimal.whole, decimal.fraction);
  }
  std::string all;
  if (value.is_array()) {
    for (const Json& element : value) all += canonical(element) + ",";
    return "[" + all + "]";
  }
  if (!value.is_object()) return value.dump();
  std::map<std::string, std::string> members;
  for (const auto& [name, member] : value.items()) members[Json(name).dump()] = canonical(member);
  for (const auto& [name, member] : members) all += fmt::format("{}:{},", name, member);
  return "{" + all + "}";
}

uint32_t count_characters(std::string_view utf8) {
  uint32_t count = 0;
  for (size_t at = 0; at < utf8.size(); ++count) text::next_character(utf8, at);
  return count;
}

}  // namespace

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
    case Json::value_t::binary:
    case Json::value_t::discarded:
      break;
  }
  return 0;
}

// They are long where the value is, and asked for once for each branch.
const std::string& SchemaCompiler::key_of(const Json& value) {
  const auto [known, is_new] = value_keys_.try_emplace(&value);
  if (is_new) known->second = canonical(value);
  return known->second;
}

// Those that all lists have.
std::optional<SchemaCompiler::Values> SchemaCompiler::all_listed(const Terms& flat) {
  std::optional<Values> values;
  const auto keep = [&](std::span<const Json* const> others) {
    std::unordered_set<std::string_view> known;
    if (!values) {
      values.emplace();
      for (const Json* value : others) {
        if (known.insert(key_of(*value)).second) values->push_back(value);
      }
      return;
    }
    for (const Json* value : others) known.insert(key_of(*value));
    std::erase_if(*values, [&](const Json* value) { return !known.contains(key_of(*value)); });
  };
  for (const Term term : flat) {
    if (const Json* constant = document_.find(*term.schema, "const")) keep({&constant, 1});
    if (const Json* list = document_.array(*term.schema, "enum")) {
      count_steps(*term.schema, kStepsOfValue * list->size());
      std::vector<const Json*> others;
      others.reserve(list->size());
      for (const Json& value : *list) others.push_back(&value);
      keep(others);
    }
  }
  return values;
}

// What the terms say of values of these types beside their lists.
SchemaCompiler::Limits SchemaCompiler::limits_of(const Terms& flat, uint8_t types) {
  Limits limits;
  if ((types & (kInteger | kNumber)) != 0) {
    limits.bounds = bounds_of(flat);
    limits.divisors = divisors_of(flat);
  }
  if ((types & kString) != 0) {
    const StringBounds bounds = string_bounds(flat);
    limits.length = bounds.length;
    for (const Text& text : bounds.texts) limits.languages.push_back(&language(text));
  }
  // What is in lists and objects would have to be judged as schemas judge it.
  const auto refuse = [&](uint8_t type, std::initializer_list<const char*> keywords) {
    if ((types & type) == 0) return;
    for (const Term term : flat) {
      for (const char* keyword : keywords) {
        if (!term.schema->contains(keyword)) continue;
        document_.refuse(*term.schema, keyword,
                         "beside an enum or const with lists or objects is not supported");
      }
    }
  };
  refuse(kArray, {"items", "prefixItems", "additionalItems", "minItems", "maxItems"});
  refuse(kObject, {"properties", "required", "additionalProperties", "patternProperties",
                   "propertyNames", "minProperties", "maxProperties"});
  return limits;
}

bool SchemaCompiler::allows(const Limits& limits, const Json& value) const {
  if (value.is_number()) {
    const Decimal number = decimal_of(value);
    const auto holds = [&](const std::optional<Bound>& bound, int side) {
      const int order = bound ? compare(number, bound->value) * side : 1;
      return order > 0 || (order == 0 && !bound->is_exclusive);
    };
    if (!holds(limits.bounds.min, 1) || !holds(limits.bounds.max, -1)) return false;
    return std::ranges::all_of(limits.divisors, [&](const Divisor& divisor) {
      const auto divides = is_multiple(number, divisor.value);
      if (!divides) document_.refuse(*divisor.owner, "multipleOf", kTooManyDigits);
      return *divides;
    });
  }
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (limits.length.is_bounded()) {
      const uint32_t characters = count_characters(text);
      if (characters < limits.length.min || characters > limits.length.max) return false;
    }
    return std::ranges::all_of(limits.languages,
                               [&](const auto* language) { return language->contains(text); });
  }
  return true;
}

std::optional<SchemaCompiler::Values> SchemaCompiler::listed_values(const Terms& flat,
                                                                    uint8_t types) {
  const auto all = all_listed(flat);
  if (!all) return std::nullopt;
  uint8_t its_types = 0;
  for (const Json* value : *all) its_types |= type_of_value(*value);
  const Limits limits = limits_of(flat, types & its_types);
  Values values;
  for (const Json* value : *all) {
    if ((type_of_value(*value) & types) != 0 && allows(limits, *value)) values.push_back(value);
  }
  return values;
}

std::optional<NodeId> SchemaCompiler::listed(const Terms& flat, uint8_t types) {
  const auto values = listed_values(flat, types);
  if (!values) return std::nullopt;
  std::vector<NodeId> ways;
  std::vector<std::string> texts;
  for (const Json* value : *values) {
    const NodeId node = constant(*value);
    if (syntax_.node(node).kind == Node::Kind::kLiteral) {
      texts.emplace_back(syntax_.text(syntax_.node(node)));
    } else {
      ways.push_back(node);
    }
  }
  ways.push_back(syntax_.choice_of_texts(std::move(texts)));
  return syntax_.choice(ways);
}

NodeId SchemaCompiler::quoted(std::string_view text) { return syntax_.literal(json_text(text)); }

NodeId SchemaCompiler::constant(const Json& value) {
  if (value.is_string()) return quoted(value.get<std::string>());
  if (value.is_number_float()) {
    const double number = value.get<double>();
    const NodeId as_written = syntax_.literal(value.dump());
    if (number != std::floor(number) || std::abs(number) > 1e15) return as_written;
    return syntax_.choice({as_written, syntax_.literal(fmt::format("{:.0f}", number))});
  }
  if (!value.is_structured()) return syntax_.literal(value.dump());
  const auto known = constants_.find(&value);
  if (known != constants_.end()) return known->second;
  const NodeId node = list_or_object(value);
  constants_.emplace(&value, node);
  return node;
}

NodeId SchemaCompiler::list_or_object(const Json& value) {
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
