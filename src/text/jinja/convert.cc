// str() and repr() of values, and HTML escaping.
#include <charconv>
#include <cmath>

#include "text/jinja/function.h"
#include "text/jinja/loop.h"
#include "text/jinja/macro.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {
namespace {

void append_repr(Budget& budget, std::string& out, const Value& value);

void append_items(Budget& budget, std::string& out, const Values& items) {
  bool first = true;
  for (const Value& item : items) {
    if (!first) out += ", ";
    first = false;
    append_repr(budget, out, item);
  }
}

void append_dict(Budget& budget, std::string& out, const Dict& dict) {
  out += '{';
  bool first = true;
  for (const Dict::Entry& entry : dict.entries()) {
    if (!first) out += ", ";
    first = false;
    append_repr(budget, out, entry.key);
    out += ": ";
    append_repr(budget, out, entry.value);
  }
  out += '}';
}

void append_view(Budget& budget, std::string& out, const View& view) {
  out += view.which == ViewKind::kKeys     ? "dict_keys(["
         : view.which == ViewKind::kValues ? "dict_values(["
                                           : "dict_items([";
  bool first = true;
  for (const Dict::Entry& entry : view.dict.as<Dict>().entries()) {
    if (!first) out += ", ";
    first = false;
    if (view.which == ViewKind::kItems) out += '(';
    if (view.which != ViewKind::kValues) append_repr(budget, out, entry.key);
    if (view.which == ViewKind::kItems) out += ", ";
    if (view.which != ViewKind::kKeys) append_repr(budget, out, entry.value);
    if (view.which == ViewKind::kItems) out += ')';
  }
  out += "])";
}

void append_range(std::string& out, const Range& range) {
  out += fmt::format("range({}, {}", range.start, range.stop);
  if (range.step != 1) out += fmt::format(", {}", range.step);
  out += ')';
}

// Objects whose address Python would print, which no prompt can depend on.
void append_opaque(std::string& out, const Value& value) {
  switch (value.kind()) {
    case Kind::kFunction:
      out += fmt::format("<function {}>", value.as_function().name);
      break;
    case Kind::kSelf:
      out += "<TemplateReference None>";
      break;
    case Kind::kMethod:
      out += fmt::format("<built-in method {} of {} object>", value.as<Method>().builtin.name,
                         type_name(value.as<Method>().self));
      break;
    default:
      out += fmt::format("<{} object>", type_name(value));
  }
}

void append_repr(Budget& budget, std::string& out, const Value& value) {
  budget.step();
  budget.expect(out.size());
  const Nesting nesting(budget);
  switch (value.kind()) {
    case Kind::kString:
      budget.work(text_of(value).size());
      if (is_markup(value)) out += "Markup(";
      out += quote(text_of(value));
      if (is_markup(value)) out += ')';
      break;
    case Kind::kList:
      out += '[';
      append_items(budget, out, items_of(value));
      out += ']';
      break;
    case Kind::kTuple:
      out += '(';
      append_items(budget, out, items_of(value));
      if (items_of(value).size() == 1) out += ',';
      out += ')';
      break;
    case Kind::kDict:
      append_dict(budget, out, value.as<Dict>());
      break;
    case Kind::kView:
      append_view(budget, out, value.as<View>());
      break;
    case Kind::kRange:
      append_range(out, value.as<Range>());
      break;
    case Kind::kUndefined:
      out += "Undefined";
      break;
    case Kind::kNamespace:
      out += "<Namespace ";
      append_dict(budget, out, value.as<Namespace>().attributes.as<Dict>());
      out += '>';
      break;
    case Kind::kMacro:
      out += describe_macro(value.as<Macro>());
      break;
    case Kind::kLoop:
      out += describe_loop(value.as<Loop>());
      break;
    case Kind::kFunction:
    case Kind::kMethod:
    case Kind::kIterator:
    case Kind::kCycler:
    case Kind::kJoiner:
    case Kind::kSelf:
    case Kind::kBlock:
      append_opaque(out, value);
      break;
    default:
      append_str(budget, out, value);
  }
}

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  std::string out;
  if (text.front() == '-') {
    out += '-';
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  int exponent = 0;
  const std::string_view exponent_text = text.substr(text[e + 1] == '+' ? e + 2 : e + 1);
  std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
  const auto count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out.append(".").append(digits, 1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0)
    return out + "0." + std::string(static_cast<size_t>(-exponent) - 1, '0') + digits;
  if (count <= exponent + 1) {
    return out + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  }
  const auto whole = static_cast<size_t>(exponent) + 1;
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

void append_str(Budget& budget, std::string& out, const Value& value) {
  switch (value.kind()) {
    case Kind::kString:
      out += text_of(value);
      break;
    case Kind::kUndefined:
      break;
    case Kind::kMissing:
      out += "missing";
      break;
    case Kind::kNone:
      out += "None";
      break;
    case Kind::kBool:
      out += value.as_bool() ? "True" : "False";
      break;
    case Kind::kInt:
      out += std::to_string(value.as_int());
      break;
    case Kind::kBigInt:
      out += std::to_string(value.as_big());
      break;
    case Kind::kFloat:
      out += float_repr(value.as_float());
      break;
    default:
      append_repr(budget, out, value);
  }
}

std::string to_str(Budget& budget, const Value& value) {
  std::string out;
  append_str(budget, out, value);
  return out;
}

std::string to_repr(Budget& budget, const Value& value) {
  std::string out;
  append_repr(budget, out, value);
  return out;
}

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

Value escape(Budget& budget, const Value& value) {
  if (is_markup(value)) return value;
  const std::string text = value.is_string() ? text_of(value) : to_str(budget, value);
  budget.work(text.size());
  return make_string(budget, escape_html(text), true);
}

}  // namespace nanovllm::jinja
