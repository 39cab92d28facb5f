// The filter tojson as Hugging Face has it: json.dumps() with ensure_ascii off.
#include <algorithm>
#include <cmath>

#include "text/jinja/filters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

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
      case Kind::kFloat:
        out_ += number(value.as_float());
        break;
      case Kind::kString:
        write_string(text_of(value));
        break;
      case Kind::kList:
      case Kind::kTuple:
        write_list(items_of(value));
        break;
      case Kind::kDict:
        write_dict(value.as<Dict>());
        break;
      default:
        fail(Fault::kType, "Object of type {} is not JSON serializable", type_name(value));
    }
  }

  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_repr(value);
  }

  void write_string(std::string_view text) {
    budget_.work(text.size());
    out_ += '"';
    for (size_t pos = 0; pos < text.size();) {
      const char c = text[pos];
      const auto byte = static_cast<unsigned char>(c);
      if (byte >= 0x80 || (byte == 0x7F && style_.ensure_ascii)) {
        const size_t begin = pos;
        const char32_t character = decode(text, pos);
        if (style_.ensure_ascii) {
          write_escaped(character);
        } else {
          out_.append(text.substr(begin, pos - begin));
        }
        continue;
      }
      ++pos;
      if (c == '"' || c == '\\') {
        out_ += '\\';
        out_ += c;
      } else if (byte >= 0x20) {
        out_ += c;
      } else {
        write_control(c);
      }
    }
    out_ += '"';
  }

  void write_control(char c) {
    switch (c) {
      case '\n':
        out_ += "\\n";
        break;
      case '\r':
        out_ += "\\r";
        break;
      case '\t':
        out_ += "\\t";
        break;
      case '\b':
        out_ += "\\b";
        break;
      case '\f':
        out_ += "\\f";
        break;
      default:
        out_ += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    }
  }

  void write_escaped(char32_t c) {
    auto code = static_cast<uint32_t>(c);
    if (code > 0xFFFF) {
      code -= 0x10000;
      out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF));
    } else {
      out_ += fmt::format("\\u{:04x}", code);
    }
  }

  void start_line() {
    if (!style_.indents) return;
    out_ += '\n';
    for (int i = 0; i < level_; ++i) out_ += style_.indent;
  }

  void write_list(const Values& items) {
    if (items.empty()) {
      out_ += "[]";
      return;
    }
    out_ += '[';
    ++level_;
    bool is_first = true;
    for (const Value& item : items) {
      if (!is_first) out_ += style_.between_items;
      is_first = false;
      start_line();
      write(item);
    }
    --level_;
    start_line();
    out_ += ']';
  }

  void write_dict(const Dict& dict) {
    if (dict.size() == 0) {
      out_ += "{}";
      return;
    }
    std::vector<const Dict::Entry*> entries;
    entries.reserve(dict.size());
    for (const Dict::Entry& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
        budget_.step();
        return compare(budget_, CompareOp::kLt, a->key, b->key);
      });
    }
    out_ += '{';
    ++level_;
    bool is_first = true;
    for (const Dict::Entry* entry : entries) {
      if (!is_first) out_ += style_.between_items;
      is_first = false;
      start_line();
      write_key(entry->key);
      out_ += style_.after_key;
      write(entry->value);
    }
    --level_;
    start_line();
    out_ += '}';
  }

  void write_key(const Value& key) {
    switch (key.kind()) {
      case Kind::kString:
        return write_string(text_of(key));
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kBigInt:
      case Kind::kFloat:
        out_ += '"';
        write(key);
        out_ += '"';
        return;
      default:
        fail(Fault::kType, "keys must be str, int, float, bool or None, not {}", type_name(key));
    }
  }

  Budget& budget_;
  const JsonStyle style_;
  std::string out_;
  int level_ = 0;
};

}  // namespace

Value filter_tojson(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [ensure_ascii, indent, separators, sort_keys] =
      bind<4>(arguments, "tojson", {"ensure_ascii?", "indent?", "separators?", "sort_keys?"});
  JsonStyle style;
  style.ensure_ascii = bool_argument(ensure_ascii, false);
  style.sort_keys = bool_argument(sort_keys, false);
  if (indent != nullptr && !indent->is_none()) {
    style.indents = true;
    style.between_items.pop_back();  // the space, as lines separate the items
    if (indent->is_string()) {
      style.indent = text_of(*indent);
    } else {
      const int64_t width = int_argument(indent, 0, "tojson");
      if (width > 1000) fail(Fault::kLimit, "the indent of tojson is limited to 1000");
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(0, width)), ' ');
    }
  }
  if (separators != nullptr && !separators->is_none()) {
    const Values pair = in.to_values(*separators);
    if (pair.size() != 2) fail(Fault::kValue, "tojson() takes two separators");
    style.between_items = text_argument(pair[0], "tojson");
    style.after_key = text_argument(pair[1], "tojson");
  }
  return make_string(in.budget(), JsonWriter(in.budget(), std::move(style)).run(value));
}

}  // namespace nanovllm::jinja
