// The filter tojson as Hugging Face has it: json.dumps() with ensure_ascii off.
#include <algorithm>
#include <cmath>

#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/utf8.h"

namespace nanovllm::jinja {
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
        fail(Fault::kType, "Object of type {} is not JSON serializable", type_name(value));
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
        fail(Fault::kType, "keys must be str, int, float, bool or None, not {}", type_name(key));
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
      fail(Fault::kValue, "tojson() takes two separators");
    }
    style.between_items = text_of(items_of(call[2])[0]);
    style.after_key = text_of(items_of(call[2])[1]);
  }
  return make_string(call.budget, JsonWriter(call.budget, std::move(style)).run(call.self));
}

}  // namespace nanovllm::jinja
