// str(), repr() and tojson of values.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "text/jinja/filters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/strings.h"

namespace nanovllm::jinja {
namespace {

// repr() of a float: the shortest text that reads back as the same number.
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

// What is no object, and an undefined value.
std::string& append_plain(std::string& out, const Value& value) {
  if (value.is_none()) return out += "None";
  if (value.is(Kind::kBool)) return out += value.as_bool() ? "True" : "False";
  if (value.is(Kind::kInt)) return out += std::to_string(value.as_int());
  if (value.is(Kind::kBigInt)) return out += std::to_string(value.as_big());
  if (value.is(Kind::kFloat)) return out += float_repr(value.as_float());
  return value.is(Kind::kFunction) ? out += "<function>" : out;
}

// How values are written: as Python's repr(), or as JSON.
struct Style {
  bool is_json = false;
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent = std::nullopt;  // of one level; items have lines of their own
  std::string between_items = ", ";
  std::string after_key = ": ";
};

class Printer {
 public:
  Printer(Budget& budget, std::string& out, Style style = {})
      : budget_(budget), out_(out), style_(std::move(style)) {}

  void print(const Value& value) {
    budget_.step();
    budget_.expect(out_.size());
    const Nesting nesting(budget_);
    style_.is_json ? print_json(value) : print_repr(value);
  }

 private:
  void print_repr(const Value& value) {
    if (value.is_string()) {
      out_ += is_markup(value) ? "Markup(" + quote(text_of(value)) + ")" : quote(text_of(value));
    } else if (value.is(Kind::kList)) {
      print_values("[", "]", value);
    } else if (value.is(Kind::kTuple)) {
      print_values("(", items_of(value).size() == 1 ? ",)" : ")", value);
    } else if (value.is(Kind::kView)) {
      out_ += type_name(value);
      print_values("([", "])", value);
    } else if (value.is(Kind::kDict)) {
      print_dict(value);
    } else if (value.is(Kind::kNamespace)) {
      out_ += "<Namespace ";
      print_dict(value.as<Namespace>().attributes);
      out_ += '>';
    } else if (value.is_undefined()) {
      out_ += "Undefined";
    } else if (value.is_object()) {
      // Python would print the address of an object, which no prompt can depend on.
      out_ += fmt::format("<{} object>", type_name(value));
    } else {
      append_plain(out_, value);
    }
  }

  void print_json(const Value& value) {
    if (value.is_string()) {
      print_json_string(text_of(value));
    } else if (value.is_sequence()) {
      print_values("[", "]", value);
    } else if (value.is(Kind::kDict)) {
      print_dict(value);
    } else if (value.is_none() || value.is(Kind::kBool)) {
      out_ += value.is_none() ? "null" : value.as_bool() ? "true" : "false";
    } else if (value.is(Kind::kFloat) && !std::isfinite(value.as_float())) {
      out_ += std::isnan(value.as_float()) ? "NaN"
              : value.as_float() < 0       ? "-Infinity"
                                           : "Infinity";
    } else if (value.is_number()) {
      append_plain(out_, value);
    } else {
      fail("Object of type {} is not JSON serializable", type_name(value));
    }
  }

  void print_json_string(std::string_view text) {
    budget_.work(text.size());
    out_ += '"';
    for (size_t pos = 0; pos < text.size();) {
      // As far as nothing is to be escaped.
      size_t end = pos;
      while (end < text.size() && !is_escaped(text[end])) ++end;
      out_ += text.substr(pos, end - pos);
      pos = end;
      if (pos < text.size()) print_escaped(text::next_character(text, pos));
    }
    out_ += '"';
  }

  bool is_escaped(char c) const {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || c == '"' || c == '\\' || (style_.ensure_ascii && byte >= 0x7F);
  }

  void print_escaped(uint32_t c) {
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
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += *style_.indent;
  }

  template <typename Items, typename Print>
  void print_items(std::string_view open, std::string_view close, const Items& items,
                   const Print& print_item) {
    out_ += open;
    ++level_;
    bool is_first = true;
    for (const auto& item : items) {
      if (!is_first) out_ += style_.between_items;
      is_first = false;
      start_line();
      print_item(item);
    }
    --level_;
    if (!is_first) start_line();
    out_ += close;
  }

  void print_values(std::string_view open, std::string_view close, const Value& list) {
    print_items(open, close, items_of(list), [&](const Value& item) { print(item); });
  }

  void print_dict(const Value& dict) {
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& entry : entries_of(dict)) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
        budget_.step();
        return compare(budget_, CompareOp::kLt, a->key, b->key);
      });
    }
    print_items("{", "}", entries, [&](const Dict::Entry* entry) {
      const Value& key = entry->key;
      const bool is_quoted = style_.is_json && !key.is_string();
      if (is_quoted && !key.is_number() && !key.is_none()) {
        fail("keys must be str, int, float, bool or None, not {}", type_name(key));
      }
      if (is_quoted) out_ += '"';
      print(key);
      if (is_quoted) out_ += '"';
      out_ += style_.after_key;
      print(entry->value);
    });
  }

  Budget& budget_;
  std::string& out_;
  const Style style_;
  int level_ = 0;
};

}  // namespace

void append_str(Budget& budget, std::string& out, const Value& value) {
  if (value.is_string()) {
    out += text_of(value);
  } else if (value.is_object() && !value.is_undefined()) {
    Printer(budget, out).print(value);
  } else {
    append_plain(out, value);
  }
}

std::string to_str(Budget& budget, const Value& value) {
  std::string out;
  append_str(budget, out, value);
  return out;
}

std::string to_repr(Budget& budget, const Value& value) {
  std::string out;
  Printer(budget, out).print(value);
  return out;
}

Value escape(Budget& budget, const Value& value) {
  if (is_markup(value)) return value;
  return make_string(budget, escape_html(to_str(budget, value)), true);
}

// ensure_ascii? indent? separators? sort_keys?
Value filter_tojson(const Call& call) {
  Style style;
  style.is_json = true;
  style.ensure_ascii = call.flag(0, false);
  style.sort_keys = call.flag(3, false);
  if (call.has(1)) {
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
  std::string out;
  Printer(call.budget, out, std::move(style)).print(call.self);
  return make_string(call.budget, std::move(out));
}

}  // namespace nanovllm::jinja
