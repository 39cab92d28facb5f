// str(), repr() and tojson of values.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/filters.h"
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
  return make_string(budget, escape_html(text), true);
}

namespace {

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool indents = false;
  std::string indent;  // of one level
  std::string between_items = ", ";
  std::string after_key = ": ";
};

class JsonWriter {
 public:
  JsonWriter(Budget& budget, JsonStyle style) : budget_(budget), style_(std::move(style)) {}

  std::string run(const Value& value) {
    write(value);
    return std::move(out_);
  }

 private:
  void write(const Value& value) {
    budget_.step();
    budget_.expect(out_.size());
    const Nesting nesting(budget_);
    switch (value.kind()) {
      case Kind::kNone:
        out_ += "null";
        break;
      case Kind::kBool:
        out_ += value.as_bool() ? "true" : "false";
        break;
      case Kind::kInt:
      case Kind::kBigInt:
        append_str(budget_, out_, value);
        break;
      case Kind::kFloat: {
        const double number = value.as_float();
        out_ += std::isnan(number)   ? "NaN"
                : std::isinf(number) ? (number < 0 ? "-Infinity" : "Infinity")
                                     : float_repr(number);
        break;
      }
      case Kind::kString:
        write_string(text_of(value));
        break;
      case Kind::kList:
      case Kind::kTuple:
        write_items('[', ']', items_of(value), [&](const Value& item) { write(item); });
        break;
      case Kind::kDict:
        write_dict(value);
        break;
      default:
        fail("Object of type {} is not JSON serializable", type_name(value));
    }
  }

  void write_string(std::string_view text) {
    budget_.work(text.size());
    out_ += '"';
    for (size_t pos = 0; pos < text.size();) {
      // As far as nothing is to be escaped.
      size_t end = pos;
      while (end < text.size() && !is_escaped(text[end])) ++end;
      out_ += text.substr(pos, end - pos);
      pos = end;
      if (pos < text.size()) write_escaped(text::next_character(text, pos));
    }
    out_ += '"';
  }

  bool is_escaped(char c) const {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || c == '"' || c == '\\' || (style_.ensure_ascii && byte >= 0x7F);
  }

  void write_escaped(uint32_t c) {
    constexpr std::string_view kShort = "\"\\\n\r\t\b\f";
    const size_t index = c < 0x80 ? kShort.find(static_cast<char>(c)) : std::string_view::npos;
    if (index != std::string_view::npos) {
      out_ += '\\';
      out_ += "\"\\nrtbf"[index];
    } else if (c > 0xFFFF) {
      out_ +=
          fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + (c & 0x3FF));
    } else {
      out_ += fmt::format("\\u{:04x}", c);
    }
  }

  void start_line() {
    if (!style_.indents) return;
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += style_.indent;
  }

  template <typename Items, typename Write>
  void write_items(char open, char close, const Items& items, const Write& write_item) {
    out_ += open;
    ++level_;
    bool is_first = true;
    for (const auto& item : items) {
      if (!is_first) out_ += style_.between_items;
      is_first = false;
      start_line();
      write_item(item);
    }
    --level_;
    if (!is_first) start_line();
    out_ += close;
  }

  void write_dict(const Value& dict) {
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& entry : entries_of(dict)) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
        budget_.step();
        return compare(budget_, CompareOp::kLt, a->key, b->key);
      });
    }
    write_items('{', '}', entries, [&](const Dict::Entry* entry) {
      const Value& key = entry->key;
      if (!key.is_string() && !key.is_number() && !key.is_none()) {
        fail("keys must be str, int, float, bool or None, not {}", type_name(key));
      }
      if (!key.is_string()) out_ += '"';
      write(key);
      if (!key.is_string()) out_ += '"';
      out_ += style_.after_key;
      write(entry->value);
    });
  }

  Budget& budget_;
  const JsonStyle style_;
  std::string out_;
  int level_ = 0;
};

}  // namespace

// ensure_ascii? indent? separators? sort_keys?
Value filter_tojson(const Call& call) {
  JsonStyle style;
  style.ensure_ascii = call.flag(0, false);
  style.sort_keys = call.flag(3, false);
  if (call.has(1)) {
    style.indents = true;
    style.between_items.pop_back();  // the space, as lines separate the items
    style.indent = indention(call, 1, 0);
  }
  if (call.has(2)) {
    if (!call[2].is_sequence() || items_of(call[2]).size() != 2 ||
        !items_of(call[2])[0].is_string() || !items_of(call[2])[1].is_string()) {
      fail("tojson() takes two separators");
    }
    style.between_items = text_of(items_of(call[2])[0]);
    style.after_key = text_of(items_of(call[2])[1]);
  }
  return make_string(call.budget, JsonWriter(call.budget, std::move(style)).run(call.self));
}

}  // namespace nanovllm::jinja
