// str() and repr() of values.
#include <charconv>
#include <cmath>

#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/strings.h"

namespace nanovllm::jinja {
namespace {

void append_repr(Budget& budget, std::string& out, const Value& value);

void append_items(Budget& budget, std::string& out, const Values& items) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    append_repr(budget, out, items[i]);
  }
}

void append_dict(Budget& budget, std::string& out, const Value& dict) {
  out += '{';
  for (const Dict::Entry& entry : entries_of(dict)) {
    if (&entry != &entries_of(dict).front()) out += ", ";
    append_repr(budget, out, entry.key);
    out += ": ";
    append_repr(budget, out, entry.value);
  }
  out += '}';
}

void append_repr(Budget& budget, std::string& out, const Value& value) {
  budget.step();
  budget.expect(out.size());
  const Nesting nesting(budget);
  switch (value.kind()) {
    case Kind::kString:
      budget.work(text_of(value).size());
      out += is_markup(value) ? "Markup(" + quote(text_of(value)) + ")" : quote(text_of(value));
      break;
    case Kind::kList:
      out += '[';
      append_items(budget, out, items_of(value));
      out += ']';
      break;
    case Kind::kTuple:
      out += '(';
      append_items(budget, out, items_of(value));
      out += items_of(value).size() == 1 ? ",)" : ")";
      break;
    case Kind::kView:
      out += fmt::format("{}([", type_name(value));
      append_items(budget, out, items_of(value));
      out += "])";
      break;
    case Kind::kDict:
      append_dict(budget, out, value);
      break;
    case Kind::kUndefined:
      out += "Undefined";
      break;
    case Kind::kNamespace:
      out += "<Namespace ";
      append_dict(budget, out, value.as<Namespace>().attributes);
      out += '>';
      break;
    case Kind::kMacro:
      out += fmt::format("<Macro '{}'>", value.as<Macro>().name);
      break;
    case Kind::kFunction:
    case Kind::kMethod:
    case Kind::kIterator:
    case Kind::kLoop:
      // Python would print its address, which no prompt can depend on.
      out += fmt::format("<{} object>", type_name(value));
      break;
    default:
      append_str(budget, out, value);
  }
}

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  const double size = std::fabs(value);
  const bool is_fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  char buffer[40];
  char* const end =
      std::to_chars(buffer, buffer + sizeof(buffer), value,
                    is_fixed ? std::chars_format::fixed : std::chars_format::scientific)
          .ptr;
  std::string out(buffer, end);
  return is_fixed && out.find('.') == std::string::npos ? out + ".0" : out;
}

void append_str(Budget& budget, std::string& out, const Value& value) {
  switch (value.kind()) {
    case Kind::kString:
      out += text_of(value);
      break;
    case Kind::kUndefined:
    case Kind::kMissing:
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

Value escape(Budget& budget, const Value& value) {
  if (is_markup(value)) return value;
  const std::string text = to_str(budget, value);
  budget.work(text.size());
  return make_string(budget, escape_html(text), true);
}

}  // namespace nanovllm::jinja
