// Numbers, strings and lists of JSON Schema.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "base/check.h"
#include "grammar/regex.h"
#include "grammar/schema_compiler.h"
#include "grammar/string_formats.h"
#include "io/json.h"

namespace nanovllm::grammar {
namespace {

constexpr size_t kMaxTexts = 30;               // patterns and formats of one string
constexpr int64_t kMaxListed = 10'000;         // multiples between two bounds
constexpr size_t kMaxProductStates = 100'000;  // of all patterns that meet others or lengths
constexpr size_t kStepsOfState = 10;   // of these; half a one more for each entry of a table
constexpr size_t kStepsOfElement = 3;  // that has a place of its own

// value * 10^places, rounded down or up; none: it is too large.
std::optional<int64_t> scaled(const Decimal& value, size_t places, bool rounds_up) {
  std::string digits = value.whole;
  std::string fraction = value.fraction;
  const bool is_cut = fraction.size() > places;
  fraction.resize(places, '0');
  digits += fraction;
  if (digits.size() > 18) return std::nullopt;
  int64_t scaled = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), scaled);
  if (value.is_negative) scaled = -scaled;
  if (is_cut && rounds_up && !value.is_negative) ++scaled;
  if (is_cut && !rounds_up && value.is_negative) --scaled;
  return scaled;
}

int64_t floor_divided(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

}  // namespace

Decimal decimal_of(const Json& number) {
  if (number.is_number_unsigned()) {
    Decimal decimal;
    decimal.whole = fmt::format("{}", number.get<uint64_t>());
    return decimal;
  }
  return number.is_number_integer() ? Decimal::of(number.get<int64_t>())
                                    : Decimal::of(number.get<double>());
}

NumberBounds SchemaCompiler::bounds_of(const Terms& flat) const {
  NumberBounds bounds;
  const auto narrow = [&](bool is_min, const Json& value, bool is_exclusive) {
    std::optional<Bound>& bound = is_min ? bounds.min : bounds.max;
    const Bound other = {decimal_of(value), is_exclusive};
    const int order = bound ? compare(other.value, bound->value) * (is_min ? 1 : -1) : 1;
    if (order > 0 || (order == 0 && is_exclusive)) bound = other;
  };
  for (const Term term : flat) {
    const Json& schema = *term.schema;
    for (const bool is_min : {true, false}) {
      const char* const keyword = is_min ? "minimum" : "maximum";
      const char* const exclusive = is_min ? "exclusiveMinimum" : "exclusiveMaximum";
      const Json* limit = document_.find(schema, keyword);
      const Json* strict = document_.find(schema, exclusive);
      if (limit != nullptr && !limit->is_number()) document_.fail(schema, keyword, "is no number");
      if (strict != nullptr && !strict->is_number() && !strict->is_boolean()) {
        document_.fail(schema, exclusive, "is no number");
      }
      // In draft 4 it says how `minimum` is meant.
      const bool is_draft_4 = strict != nullptr && strict->is_boolean() && strict->get<bool>();
      if (limit != nullptr) narrow(is_min, *limit, is_draft_4);
      if (strict != nullptr && strict->is_number()) narrow(is_min, *strict, true);
    }
  }
  return bounds;
}

std::vector<SchemaCompiler::Divisor> SchemaCompiler::divisors_of(const Terms& flat) const {
  std::vector<Divisor> divisors;
  for (const Term term : flat) {
    const Json* multiple = document_.find(*term.schema, "multipleOf");
    if (multiple == nullptr) continue;
    if (!multiple->is_number() || !(multiple->get<double>() > 0)) {
      document_.fail(*term.schema, "multipleOf", "is no number above zero");
    }
    const Divisor its = {term.schema, decimal_of(*multiple)};
    const auto is_same = [&](const Divisor& other) { return other.value == its.value; };
    if (std::ranges::none_of(divisors, is_same)) divisors.push_back(its);
  }
  return divisors;
}

NodeId SchemaCompiler::number(const Terms& flat, bool is_integer) {
  NumberBounds bounds = bounds_of(flat);
  const std::vector<Divisor> divisors = divisors_of(flat);
  if (divisors.size() > 1) {
    document_.refuse(*divisors[1].owner, "multipleOf", "meets another one, which is not supported");
  }
  if (is_integer) bounds.max_fraction = 0;
  if (bounds.min && bounds.max) {
    const int order = compare(bounds.min->value, bounds.max->value);
    const bool is_strict = bounds.min->is_exclusive || bounds.max->is_exclusive;
    if (order > 0 || (order == 0 && is_strict)) return syntax_.never();
  }
  if (divisors.empty()) return number_node(syntax_, bounds);
  return multiples(*divisors[0].owner, divisors[0].value, bounds, is_integer);
}

NodeId SchemaCompiler::multiples(const Json& schema, const Decimal& divisor, NumberBounds bounds,
                                 bool is_integer) {
  const size_t places = divisor.fraction.size();
  const auto step = scaled(divisor, places, false);
  if (!step) document_.refuse(schema, "multipleOf", kTooManyDigits);
  if (*step == 1) {  // 1, 0.1, 0.01 ...: so many digits
    bounds.max_fraction = std::min(bounds.max_fraction, static_cast<uint32_t>(places));
    return number_node(syntax_, bounds);
  }
  if (bounds.min && bounds.max) {
    const auto low = scaled(bounds.min->value, places, true);
    const auto high = scaled(bounds.max->value, places, false);
    if (low && high) {
      const int64_t first = -floor_divided(-*low, *step), last = floor_divided(*high, *step);
      if (last - first <= kMaxListed) {
        std::vector<std::string> texts;
        for (int64_t i = first; i <= last; ++i) {
          const int64_t value = i * *step;
          std::string digits = fmt::format("{:0{}}", std::abs(value), places + 1);
          std::string fraction = digits.substr(digits.size() - places);
          digits.resize(digits.size() - places);
          while (fraction.ends_with('0')) fraction.pop_back();
          const Decimal decimal = {value < 0, digits, fraction};
          const bool is_out =
              (bounds.min->is_exclusive && compare(decimal, bounds.min->value) == 0) ||
              (bounds.max->is_exclusive && compare(decimal, bounds.max->value) == 0) ||
              (is_integer && !fraction.empty());
          if (is_out) continue;
          texts.push_back((value < 0 ? "-" : "") + digits +
                          (fraction.empty() ? "" : "." + fraction));
        }
        return syntax_.choice_of_texts(std::move(texts));
      }
    }
  }
  const Decimal zero;
  const auto is_near_zero = [&](const Bound& bound) {
    return compare(bound.value, divisor) <= 0 && compare(bound.value, divisor.negated()) >= 0;
  };
  const bool has_simple_bounds =
      (!bounds.min || is_near_zero(*bounds.min)) && (!bounds.max || is_near_zero(*bounds.max));
  if (places > 0 || *step > kMaxDivisor || !has_simple_bounds) {
    document_.refuse(schema, "multipleOf",
                     "can't be enforced with these bounds; expected whole numbers of up to 800 and "
                     "bounds that are near each other, or none but zero");
  }
  const auto allows = [&](int sign) {
    const Decimal value = sign == 0 ? zero : sign > 0 ? divisor : divisor.negated();
    const auto holds = [&](const std::optional<Bound>& bound, int side) {
      const int order = bound ? compare(value, bound->value) * side : 1;
      return order > 0 || (order == 0 && !bound->is_exclusive);
    };
    return holds(bounds.min, 1) && holds(bounds.max, -1);
  };
  // A bound that cuts off some multiples of one sign only is none of these.
  if ((bounds.max && allows(1)) || (bounds.min && allows(-1)) ||
      (bounds.min && bounds.min->is_exclusive && bounds.min->value == divisor) ||
      (bounds.max && bounds.max->is_exclusive && bounds.max->value == divisor.negated())) {
    document_.refuse(schema, "multipleOf", "can't be enforced with these bounds");
  }
  return multiple_node(syntax_, *step, allows(-1), allows(0), allows(1));
}

std::vector<SchemaCompiler::Text> SchemaCompiler::texts_of(const Json& schema) {
  std::vector<Text> texts;
  if (const auto pattern = document_.text(schema, "pattern")) {
    texts.push_back({*pattern, true, document_.where(schema) + ": pattern"});
  }
  if (const auto format = document_.text(schema, "format")) {
    const std::string* const regex = regex_of_format(*format);
    if (regex != nullptr) {
      texts.push_back({*regex, false, document_.where(schema) + ": format"});
    } else if (noted_.insert("format " + *format).second) {
      notes_.push_back(fmt::format("{}: the format \"{}\" is not enforced", document_.where(schema),
                                   printable(*format)));
    }
  }
  return texts;
}

LengthBounds SchemaCompiler::length_of(const Json& schema) const {
  return {document_.count(schema, "minLength").value_or(0),
          document_.count(schema, "maxLength").value_or(kUnbounded)};
}

std::vector<SchemaCompiler::Text> SchemaCompiler::texts_of(const Terms& flat) {
  std::vector<Text> texts;
  for (const Term term : flat) {
    for (Text& text : texts_of(*term.schema)) {
      const auto is_same = [&](const Text& other) {
        return other.regex == text.regex && other.is_search == text.is_search;
      };
      if (std::ranges::none_of(texts, is_same)) texts.push_back(std::move(text));
    }
  }
  return texts;
}

LengthBounds SchemaCompiler::length_of(const Terms& flat) const {
  LengthBounds length;
  for (const Term term : flat) {
    const LengthBounds its = length_of(*term.schema);
    length = {std::max(length.min, its.min), std::min(length.max, its.max)};
  }
  return length;
}

const StringLanguage& SchemaCompiler::language(const std::string& name,
                                               const std::function<StringLanguage()>& make) {
  const auto known = languages_.find(name);
  return known != languages_.end() ? known->second : languages_.emplace(name, make()).first->second;
}

const StringLanguage& SchemaCompiler::language(const Text& text, Spelling spelling) {
  const std::string name = fmt::format("{}{}{}", text.is_search ? "s" : "r",
                                       spelling == Spelling::kText ? "t" : "j", text.regex);
  return language(name, [&] {
    return text.is_search ? StringLanguage::of_pattern(text.regex, text.where, spelling)
                          : StringLanguage::of_regex(text.regex, spelling);
  });
}

void SchemaCompiler::count_product(const Terms& flat, size_t states, LengthBounds length) {
  count_steps(owner(flat), states * (kStepsOfState + length.min / 2));
  num_product_states_ += states;
  if (num_product_states_ > kMaxProductStates) {
    document_.refuse(owner(flat), "pattern",
                     "and all others of the schema with their lengths are too large together; make "
                     "them simpler");
  }
}

const StringLanguage& SchemaCompiler::without_excluded() {
  return language("excluded", [this] { return StringLanguage::without(excluded_); });
}

NodeId SchemaCompiler::text_node(const Text& text) {
  const auto [known, is_new] =
      text_nodes_.try_emplace(std::pair(text.is_search, text.regex), syntax_.never());
  if (is_new) {
    known->second = compile_regex(
        text.regex, syntax_,
        {.spelling = Spelling::kCanonical, .is_search = text.is_search, .where = text.where});
  }
  return known->second;
}

SchemaCompiler::StringBounds SchemaCompiler::string_bounds(const Terms& flat) {
  const LengthBounds length = length_of(flat);
  std::vector<Text> texts = texts_of(flat);
  if (texts.size() > kMaxTexts) {
    document_.refuse(*flat[0].schema, "pattern",
                     fmt::format("and format come together more than {} times", kMaxTexts));
  }
  return {length, std::move(texts)};
}

std::string SchemaCompiler::key_of(std::string_view spelling, LengthBounds length,
                                   const std::vector<Text>& texts) {
  std::string key = fmt::format("{} {} {}", spelling, length.min, length.max);
  for (const Text& text : texts) {
    key += fmt::format(" {} {}:{}", text.is_search, text.regex.size(), text.regex);
  }
  return key;
}

NodeId SchemaCompiler::string(const Terms& flat) {
  const auto [length, texts] = string_bounds(flat);
  if (length.min > length.max) return syntax_.never();
  const NodeId quote = syntax_.literal("\"");
  if (texts.empty() && excluded_.empty()) {
    const NodeId character = syntax_.characters(CharRanges::all(), Spelling::kJson);
    return syntax_.sequence({quote, syntax_.repeat(character, length.min, length.max), quote});
  }
  if (texts.size() == 1 && !length.is_bounded() && excluded_.empty()) {
    return syntax_.sequence({quote, text_node(texts[0]), quote});
  }
  const auto [known, is_new] = strings_.try_emplace(key_of("json", length, texts), syntax_.never());
  if (!is_new) return known->second;
  std::vector<const StringLanguage*> languages;
  languages.reserve(texts.size());
  for (const Text& text : texts) languages.push_back(&language(text));
  if (!excluded_.empty()) languages.push_back(&without_excluded());
  const uint32_t all = (1u << languages.size()) - 1;
  const StringProduct product(languages,
                              texts.empty() ? document_.where(document_.root()) : texts[0].where);
  auto dfa = product.accepting([all](uint32_t membership) { return membership == all; }, length);
  count_product(flat, product.size(), length);
  if (dfa) known->second = syntax_.sequence({quote, syntax_.dfa(std::move(*dfa))});
  return known->second;
}

// What the terms say of the element at `index`.
SchemaCompiler::Terms SchemaCompiler::element(const Terms& flat, size_t index) const {
  Terms terms;
  for (const Term term : flat) {
    const Json& schema = *term.schema;
    const Json* items = document_.find(schema, "items");
    const Json* prefix = document_.array(schema, "prefixItems");
    if (prefix == nullptr && items != nullptr && items->is_array()) {
      prefix = items;
      items = document_.find(schema, "additionalItems");
    }
    if (prefix != nullptr && index < prefix->size()) {
      terms.push_back(Term{&(*prefix)[index]});
    } else if (items != nullptr) {
      terms.push_back(Term{items});
    }
  }
  return terms;
}

NodeId SchemaCompiler::array(const Terms& flat) {
  uint32_t min = 0, max = kUnbounded;
  size_t prefix = 0;
  for (const Term term : flat) {
    const Json& schema = *term.schema;
    min = std::max(min, document_.count(schema, "minItems").value_or(0));
    max = std::min(max, document_.count(schema, "maxItems").value_or(kUnbounded));
    const Json* items = document_.find(schema, "items");
    const Json* list = document_.array(schema, "prefixItems");
    if (list == nullptr && items != nullptr && items->is_array()) list = items;
    if (list != nullptr) prefix = std::max(prefix, list->size());
  }
  if (min > max) return none(flat, "list", {"minItems", "maxItems"});
  const NodeId open = syntax_.literal("["), close = syntax_.literal("]");
  prefix = std::min<size_t>(prefix, max);
  count_steps(owner(flat), kStepsOfElement * prefix * flat.size());
  // From the last element on: what may follow behind so many.
  const auto fewer = [](uint32_t count, size_t by) {
    return count == kUnbounded ? count : static_cast<uint32_t>(count - std::min<size_t>(count, by));
  };
  const NodeId rest = max > prefix ? value(element(flat, prefix)) : syntax_.never();
  const auto further = [&](size_t written) {
    return syntax_.repeat(syntax_.sequence({comma_, rest}), fewer(min, written),
                          fewer(max, written));
  };
  NodeId list;
  if (prefix == 0) {
    list = syntax_.sequence({rest, further(1)});
  } else {
    NodeId behind = further(prefix);
    for (size_t i = prefix; i-- > 1;) {
      const NodeId more = syntax_.sequence({comma_, value(element(flat, i)), behind});
      behind = i >= min ? syntax_.choice({syntax_.empty(), more}) : more;
    }
    list = syntax_.sequence({value(element(flat, 0)), behind});
  }
  const NodeId some = syntax_.sequence({open, space_, list, space_, close});
  const NodeId none = syntax_.sequence({open, space_, close});
  if (max == 0) return none;
  return min == 0 ? syntax_.choice({none, some}) : some;
}

}  // namespace nanovllm::grammar
