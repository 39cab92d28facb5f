// The table of filters, and those of single values and texts.
#include "text/jinja/filters.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/strings.h"
#include "text/unicode_case.h"

namespace nanovllm::jinja {
namespace {

constexpr int64_t kWidestIndention = 1000;

// A string as it is, anything else printed (markupsafe's soft_str).
Value soft_str(const Call& call) {
  return call.self.is_string() ? call.self
                               : make_string(call.budget, to_str(call.budget, call.self));
}

template <text::CaseMapping kMapping>
Value filter_case(const Call& call) {
  const Value text = soft_str(call);
  return make_string(call.budget, text::map_case(text_of(text), kMapping), is_markup(text));
}

Value filter_trim(const Call& call) {  // chars?
  const Value source = soft_str(call);
  const std::string& text = text_of(source);
  return make_string(call.budget,
                     call.has(0) ? strip_characters(call.budget, text, call.text(0), Side::kBoth)
                                 : strip_spaces(text, Side::kBoth),
                     is_markup(source));
}

Value filter_string(const Call& call) { return soft_str(call); }
Value filter_escape(const Call& call) { return escape(call.budget, call.self); }

Value filter_safe(const Call& call) {
  if (is_markup(call.self)) return call.self;
  return make_string(call.budget, to_str(call.budget, call.self), true);
}

Value filter_replace(const Call& call) {  // old new count?
  Budget& budget = call.budget;
  return make_string(budget,
                     replace_all(budget, to_str(budget, call.self), to_str(budget, call[0]),
                                 to_str(budget, call[1]), call.has(2) ? call.integer(2, -1) : -1));
}

Value filter_join(const Call& call) {  // d? attribute?
  const std::string separator = call[0].is_missing() ? "" : to_str(call.budget, call[0]);
  const Value list = call.in.to_list(call.self);
  const Values path = attribute_path(call.budget, call[1]);
  std::string out;
  for (size_t i = 0; i < items_of(list).size(); ++i) {
    call.budget.step();
    if (i > 0) out += separator;
    append_str(call.budget, out, attribute_of(call, items_of(list)[i], path));
    call.budget.expect(out.size());
  }
  return make_string(call.budget, std::move(out));
}

Value filter_indent(const Call& call) {  // width? first? blank?
  const std::string indent = indention(call, 0, 4);
  if (call.self.is_undefined()) fail_undefined(call.self);
  if (!call.self.is_string()) {
    fail("indent() takes a string, not '{}'", type_name(call.self));
  }
  // The newline makes an empty last line a line of its own.
  const std::string text = text_of(call.self) + "\n";
  std::string out;
  bool is_first = true;
  for (const std::string_view line : split_lines(call.budget, text)) {
    if (!is_first) out += '\n';
    if (is_first ? call.flag(1, false) : !line.empty() || call.flag(2, false)) out += indent;
    is_first = false;
    out += line;
    call.budget.expect(out.size());
  }
  return make_string(call.budget, std::move(out), is_markup(call.self));
}

Value filter_default(const Call& call) {  // default_value? boolean?
  const bool is_given = call.flag(1, false) ? is_truthy(call.self) : !call.self.is_undefined();
  if (is_given) return call.self;
  return call[0].is_missing() ? make_string(call.budget, "") : call[0];
}

Value filter_length(const Call& call) {
  const int64_t length = length_of(call.self);
  if (length < 0) fail("object of type '{}' has no length", type_name(call.self));
  return Value::integer(length);
}

Value filter_float(const Call& call) {  // default?
  const Value& value = call.self;
  if (value.is_undefined()) fail_undefined(value);
  if (value.is_number()) return Value::number(float_of(value));
  int64_t whole = 0;
  double number = 0;
  if (value.is_string() && parse_number(text_of(value), whole, number)) {
    return Value::number(number);
  }
  return call[0].is_missing() ? Value::number(0.0) : call[0];
}

Value filter_int(const Call& call) {  // default?
  const Value& value = call.self;
  if (value.is_undefined()) fail_undefined(value);
  if (value.is_integer()) return Value::integer(value.as_int());
  if (value.is(Kind::kBigInt)) return value;
  int64_t whole = 0;
  double number = value.is(Kind::kFloat) ? value.as_float() : std::nan("");
  if (value.is_string()) parse_number(text_of(value), whole, number);
  if (whole != 0) return Value::integer(whole);
  if (std::isnan(number) || (value.is_string() && std::isinf(number))) {
    return call[0].is_missing() ? Value::integer(int64_t{0}) : call[0];
  }
  if (std::fabs(number) >= 0x1p63) fail("integers are limited to 64 bits");
  return Value::integer(static_cast<int64_t>(number));
}

Value filter_abs(const Call& call) {
  const Value& value = call.self;
  if (!value.is_number()) fail("bad operand type for abs(): '{}'", type_name(value));
  if (value.is(Kind::kFloat)) return Value::number(std::fabs(value.as_float()));
  return apply_sign(float_of(value) < 0, value);
}

// clang-format off
constexpr Builtin kFilters[] = {
    {"abs", "", filter_abs}, {"capitalize", "", filter_case<text::CaseMapping::kCapitalized>},
    {"count", "", filter_length}, {"d", "default_value? boolean?", filter_default},
    {"default", "default_value? boolean?", filter_default}, {"e", "", filter_escape},
    {"escape", "", filter_escape}, {"float", "default?", filter_float},
    {"indent", "width? first? blank?", filter_indent}, {"int", "default?", filter_int},
    {"join", "d? attribute?", filter_join}, {"length", "", filter_length},
    {"lower", "", filter_case<text::CaseMapping::kLower>},
    {"replace", "old new count?", filter_replace}, {"safe", "", filter_safe},
    {"string", "", filter_string}, {"title", "", filter_case<text::CaseMapping::kWords>},
    {"tojson", "ensure_ascii? indent? separators? sort_keys?", filter_tojson},
    {"trim", "chars?", filter_trim}, {"upper", "", filter_case<text::CaseMapping::kUpper>},
};
// clang-format on

}  // namespace

std::string indention(const Call& call, size_t i, int64_t otherwise) {
  if (call[i].is_string()) return call.text(i);
  const int64_t width = call.integer(i, otherwise);
  if (width > kWidestIndention) {
    fail("an indention is limited to {} spaces", kWidestIndention);
  }
  return std::string(static_cast<size_t>(std::max<int64_t>(0, width)), ' ');
}

const Builtin* find_filter(std::string_view name) {
  const Builtin* found = find_builtin(kFilters, name);
  return found != nullptr ? found : find_sequence_filter(name);
}

}  // namespace nanovllm::jinja
