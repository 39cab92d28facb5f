// "...".format(values), as Python's string.Formatter with the sandbox's access to attributes does
// it.
#include <charconv>

#include "text/jinja/format.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {
namespace {

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

int64_t to_number(std::string_view digits) {
  int64_t number = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (result.ec != std::errc()) fail(Fault::kValue, "Too many decimal digits in format string");
  return number;
}

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& in, const Arguments& values, bool markup)
      : in_(in), values_(values), markup_(markup) {}

  std::string run(std::string_view format, int levels) {
    if (levels < 0) fail(Fault::kValue, "Max string recursion exceeded");
    std::string out;
    for (size_t pos = 0; pos < format.size();) {
      in_.budget().step();
      in_.budget().expect(out.size());
      const char c = format[pos++];
      if (c != '{' && c != '}') {
        out += c;
      } else if (pos < format.size() && format[pos] == c) {
        out += c;
        ++pos;
      } else if (c == '}') {
        fail(Fault::kValue, "Single '}}' encountered in format string");
      } else {
        out += format_field(read_field(format, pos), levels);
      }
    }
    return out;
  }

 private:
  // From behind '{' to behind its '}'.
  static std::string_view read_field(std::string_view format, size_t& pos) {
    const size_t begin = pos;
    int depth = 1;
    for (; pos < format.size(); ++pos) {
      if (format[pos] == '{') ++depth;
      if (format[pos] == '}' && --depth == 0) {
        ++pos;
        return format.substr(begin, pos - 1 - begin);
      }
    }
    if (begin == format.size()) {
      fail(Fault::kValue, "Single '{{' encountered in format string");
    }
    fail(Fault::kValue, "expected '}}' before end of string");
  }

  std::string format_field(std::string_view field, int levels) {
    // The name ends at '!' or ':' outside of brackets.
    size_t end = 0;
    for (bool in_brackets = false; end < field.size(); ++end) {
      if (field[end] == '[') in_brackets = true;
      if (field[end] == ']') in_brackets = false;
      if (!in_brackets && (field[end] == '!' || field[end] == ':')) break;
    }
    const std::string_view name = field.substr(0, end);
    if (name.find('{') != std::string_view::npos) {
      fail(Fault::kValue, "unexpected '{{' in field name");
    }
    char conversion = 0;
    if (end < field.size() && field[end] == '!') {
      if (end + 1 >= field.size()) fail(Fault::kValue, "missing conversion character");
      conversion = field[end + 1];
      end += 2;
      if (end < field.size() && field[end] != ':') {
        fail(Fault::kValue, "expected ':' after conversion specifier");
      }
    }
    const std::string_view spec = end < field.size() ? field.substr(end + 1) : "";
    Value value = convert(lookup(name), conversion);
    const std::string specification = run(spec, levels - 1);
    if (!markup_) return format_value(in_, value, specification);
    if (is_markup(value)) {
      if (!specification.empty()) {
        fail(Fault::kValue, "Unsupported format specification for Markup.");
      }
      return text_of(value);
    }
    return escape_html(format_value(in_, value, specification));
  }

  Value convert(Value value, char conversion) {
    switch (conversion) {
      case 0:
        return value;
      case 's':
        return make_string(in_.budget(), to_str(in_.budget(), value));
      case 'r':
        return make_string(in_.budget(), to_repr(in_.budget(), value));
      case 'a':
        return make_string(in_.budget(), to_ascii(in_.budget(), value));
      default:
        fail(Fault::kValue, "Unknown conversion specifier {}", conversion);
    }
  }

  Value lookup(std::string_view name) {
    size_t pos = std::min(name.find_first_of(".["), name.size());
    Value value = first_value(name.substr(0, pos), pos == name.size());
    while (pos < name.size()) {
      in_.budget().step();
      if (name[pos] == '.') {
        const size_t end = std::min(name.find_first_of(".[", pos + 1), name.size());
        if (end == pos + 1) fail(Fault::kValue, "Empty attribute in format string");
        value = in_.get_attribute(
            value, make_string(in_.budget(), std::string(name.substr(pos + 1, end - pos - 1))));
        pos = end;
      } else if (name[pos] == '[') {
        const size_t end = name.find(']', pos);
        if (end == std::string_view::npos) fail(Fault::kValue, "Missing ']' in format string");
        const std::string_view key = name.substr(pos + 1, end - pos - 1);
        if (key.empty()) fail(Fault::kValue, "Empty attribute in format string");
        value = in_.get_item(value, is_number(key) ? Value::integer(to_number(key))
                                                   : make_string(in_.budget(), std::string(key)));
        pos = end + 1;
      } else {
        fail(Fault::kValue, "Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  Value first_value(std::string_view name, bool is_whole) {
    std::string number;
    if (name.empty() && is_whole) {
      if (numbering_ == Numbering::kManual) {
        fail(Fault::kValue,
             "cannot switch from manual field specification to automatic field numbering");
      }
      numbering_ = Numbering::kAutomatic;
      number = std::to_string(next_++);
      name = number;
    } else if (is_whole && is_number(name)) {
      if (numbering_ == Numbering::kAutomatic) {
        fail(Fault::kValue,
             "cannot switch from automatic field numbering to manual field specification");
      }
      numbering_ = Numbering::kManual;
    }
    if (is_number(name)) {
      const int64_t index = to_number(name);
      if (index >= static_cast<int64_t>(values_.positional.size())) {
        fail(Fault::kLookup, "Replacement index {} out of range for positional args", index);
      }
      return values_.positional[static_cast<size_t>(index)];
    }
    const Value* found = values_.find(name);
    if (found == nullptr) fail(Fault::kLookup, "{}", quote(name));
    return *found;
  }

  enum class Numbering { kUnknown, kAutomatic, kManual };

  Interpreter& in_;
  const Arguments& values_;
  const bool markup_;
  Numbering numbering_ = Numbering::kUnknown;
  int64_t next_ = 0;
};

}  // namespace

Value format_braces(Interpreter& in, const Value& format, const Arguments& values) {
  in.budget().work(text_of(format).size());
  const bool markup = is_markup(format);
  std::string text = BraceFormatter(in, values, markup).run(text_of(format), 2);
  return make_string(in.budget(), std::move(text), markup);
}

}  // namespace nanovllm::jinja
