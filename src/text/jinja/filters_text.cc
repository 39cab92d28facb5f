#include <array>
#include <cmath>

#include "text/jinja/attribute_getter.h"
#include "text/jinja/filters.h"
#include "text/jinja/format.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/iterators.h"
#include "text/jinja/operators.h"
#include "text/jinja/text.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {
namespace {

// A string as it is, anything else printed (markupsafe's soft_str).
Value soft_str(Interpreter& in, const Value& value) {
  return value.is_string() ? value : make_string(in.budget(), to_str(in.budget(), value));
}

Value convert(Interpreter& in, const Value& value, std::string (*conversion)(std::string_view)) {
  const Value text = soft_str(in, value);
  in.budget().work(text_of(text).size() * 4);
  return make_string(in.budget(), conversion(text_of(text)), is_markup(text));
}

bool is_word_start(char32_t c) {
  return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_space(c);
}

std::string url_quote(std::string_view text, bool is_query) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_plain = byte < 0x80 && (std::isalnum(byte) != 0 || c == '_' || c == '.' ||
                                          c == '-' || c == '~' || (c == '/' && !is_query));
    if (is_plain) {
      out += c;
    } else if (c == ' ' && is_query) {
      out += '+';
    } else {
      out += '%';
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return out;
}

Value join_escaped(Interpreter& in, const Values& items, Value separator) {
  // With autoescape, one part that is HTML makes the whole HTML.
  bool markup = is_markup(separator);
  for (const Value& item : items) markup |= is_markup(item);
  if (markup) separator = escape(in.budget(), separator);
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) append_str(in.budget(), out, separator);
    append_str(in.budget(), out, markup ? escape(in.budget(), items[i]) : items[i]);
    in.budget().expect(out.size());
  }
  return make_string(in.budget(), std::move(out), markup);
}

}  // namespace

Value filter_upper(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "upper");
  return convert(in, value, to_upper);
}

Value filter_lower(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "lower");
  return convert(in, value, to_lower);
}

Value filter_capitalize(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "capitalize");
  return convert(in, value, to_capitalized);
}

// Unlike str.title(), words begin after spaces, hyphens and opening brackets only.
Value filter_title(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "title");
  const Value source = soft_str(in, value);
  const std::string& text = text_of(source);
  in.budget().work(text.size() * 4);
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const size_t begin = pos;
    const bool is_separator = is_word_start(decode(text, pos));
    const size_t after_first = pos;
    while (pos < text.size()) {
      size_t next = pos;
      if (is_word_start(decode(text, next)) != is_separator) break;
      pos = next;
    }
    const std::string_view piece = std::string_view(text).substr(begin, pos - begin);
    out += to_upper(piece.substr(0, after_first - begin));
    out += to_lower(piece.substr(after_first - begin));
  }
  return make_string(in.budget(), std::move(out));
}

Value filter_trim(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [chars] = bind<1>(arguments, "trim", {"chars?"});
  const Value source = soft_str(in, value);
  const std::string& text = text_of(source);
  in.budget().work(text.size());
  const std::string_view stripped =
      chars == nullptr || chars->is_none()
          ? strip_spaces(text, Side::kBoth)
          : strip_characters(text, text_argument(*chars, "trim"), Side::kBoth);
  return make_string(in.budget(), std::string(stripped), is_markup(source));
}

Value filter_center(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [width] = bind<1>(arguments, "center", {"width?"});
  const Value source = soft_str(in, value);
  return make_string(
      in.budget(),
      pad(in.budget(), text_of(source), int_argument(width, 80, "center"), ' ', Align::kCenter),
      is_markup(source));
}

Value filter_string(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "string");
  return soft_str(in, value);
}

Value filter_safe(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "safe");
  if (is_markup(value)) return value;
  return make_string(in.budget(), to_str(in.budget(), value), true);
}

Value filter_escape(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "escape");
  return escape(in.budget(), value);
}

Value filter_forceescape(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "forceescape");
  return make_string(in.budget(), escape_html(to_str(in.budget(), value)), true);
}

Value filter_replace(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [from, to, count] = bind<3>(arguments, "replace", {"old", "new", "count?"});
  Budget& budget = in.budget();
  const int64_t limit =
      count == nullptr || count->is_none() ? -1 : int_argument(count, -1, "replace");
  if (!in.autoescape()) {
    return make_string(budget, replace_all(budget, to_str(budget, value), to_str(budget, *from),
                                           to_str(budget, *to), limit));
  }
  const bool escapes = is_markup(*from) || (is_markup(*to) && !is_markup(value));
  const Value source = escapes ? escape(budget, value) : soft_str(in, value);
  const auto part = [&](const Value& argument) {
    return is_markup(source) ? text_of(escape(budget, argument)) : to_str(budget, argument);
  };
  return make_string(budget, replace_all(budget, text_of(source), part(*from), part(*to), limit),
                     is_markup(source));
}

Value filter_join(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [separator, attribute] = bind<2>(arguments, "join", {"d?", "attribute?"});
  const AttributeGetter getter(in, attribute, false);
  const bool has_attribute = attribute != nullptr && !attribute->is_none();
  const Value between = separator == nullptr ? make_string(in.budget(), "") : *separator;
  if (in.autoescape()) {
    Values items = in.to_values(value);
    if (has_attribute) {
      for (Value& item : items) item = getter(in, item);
    }
    return join_escaped(in, items, between);
  }
  const std::string text = to_str(in.budget(), between);
  std::string out;
  bool is_first = true;
  in.for_each(value, [&](const Value& item) {
    if (!is_first) out += text;
    is_first = false;
    append_str(in.budget(), out, has_attribute ? getter(in, item) : item);
    in.budget().expect(out.size());
    return true;
  });
  in.budget().work(out.size());
  return make_string(in.budget(), std::move(out));
}

Value filter_format(Interpreter& in, const Value& value, Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    fail(Fault::kRuntime, "can't handle positional and keyword arguments at the same time");
  }
  const Value format = soft_str(in, value);
  if (arguments.named.empty()) {
    return format_percent(in, format, make_tuple(in.budget(), std::move(arguments.positional)));
  }
  const Value mapping = make_dict(in.budget());
  for (auto& [name, argument] : arguments.named) mapping.as<Dict>().set(name, argument);
  return format_percent(in, format, mapping);
}

Value filter_indent(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [width, first, blank] = bind<3>(arguments, "indent", {"width?", "first?", "blank?"});
  Budget& budget = in.budget();
  std::string indention = "    ";
  if (width != nullptr && width->is_string()) {
    indention = text_of(*width);
  } else if (width != nullptr) {
    const auto spaces =
        static_cast<size_t>(std::max<int64_t>(0, checked_width(int_argument(width, 4, "indent"))));
    indention = std::string(spaces, ' ');
  }
  if (value.is_undefined()) fail_undefined(value);
  // The newline makes an empty last line a line of its own.
  const std::string text = text_argument(value, "indent") + "\n";
  const bool indents_blank = bool_argument(blank, false);
  std::string out;
  bool is_first = true;
  for (const std::string_view line : split_lines(budget, text, false)) {
    if (!is_first) out += '\n';
    const bool indents = is_first ? bool_argument(first, false) : !line.empty() || indents_blank;
    is_first = false;
    if (indents) out += indention;
    out += line;
    budget.expect(out.size());
  }
  budget.work(out.size());
  return make_string(budget, std::move(out), is_markup(value));
}

Value filter_truncate(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [length, killwords, end, leeway] =
      bind<4>(arguments, "truncate", {"length?", "killwords?", "end?", "leeway?"});
  const int64_t wanted = int_argument(length, 255, "truncate");
  const int64_t slack =
      leeway == nullptr || leeway->is_none() ? 5 : int_argument(leeway, 5, "truncate");
  const std::string tail = end == nullptr ? "..." : text_argument(*end, "truncate");
  const auto tail_length = static_cast<int64_t>(count_code_points(tail));
  if (wanted < tail_length || slack < 0) {
    fail(Fault::kValue, "truncate() expects a length of at least {} and a leeway of at least 0",
         tail_length);
  }
  if (length_of(value) <= wanted + slack) return value;
  const std::string& text = text_argument(value, "truncate");
  in.budget().work(text.size());
  std::string_view kept = std::string_view(text).substr(
      0, code_point_offset(text, static_cast<size_t>(wanted - tail_length)));
  if (!bool_argument(killwords, false)) kept = kept.substr(0, kept.rfind(' '));
  return make_string(in.budget(), std::string(kept) + tail, is_markup(value));
}

Value filter_wordcount(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "wordcount");
  const Value source = soft_str(in, value);
  const std::string& text = text_of(source);
  in.budget().work(text.size() * 4);
  int64_t count = 0;
  bool within_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const bool is_part = is_word(decode(text, pos));
    if (is_part && !within_word) ++count;
    within_word = is_part;
  }
  return Value::integer(count);
}

Value filter_urlencode(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "urlencode");
  Budget& budget = in.budget();
  if (value.is_string() || !is_iterable(value)) {
    return make_string(budget, url_quote(to_str(budget, value), false));
  }
  std::string out;
  const auto put = [&](const Value& key, const Value& item) {
    if (!out.empty()) out += '&';
    out += url_quote(to_str(budget, key), true) + "=" + url_quote(to_str(budget, item), true);
    budget.expect(out.size());
  };
  if (value.is(Kind::kDict)) {
    for (const Dict::Entry& entry : value.as<Dict>().entries()) put(entry.key, entry.value);
  } else {
    in.for_each(value, [&](const Value& pair) {
      const Values parts = in.to_values(pair);
      if (parts.size() != 2) {
        fail(Fault::kValue, "urlencode() takes pairs, not {} values", parts.size());
      }
      put(parts[0], parts[1]);
      return true;
    });
  }
  budget.work(out.size());
  return make_string(budget, std::move(out));
}

Value filter_xmlattr(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [autospace] = bind<1>(arguments, "xmlattr", {"autospace?"});
  Budget& budget = in.budget();
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is(Kind::kDict)) {
    fail(Fault::kType, "xmlattr() takes a mapping, not '{}'", type_name(value));
  }
  std::string out;
  for (const Dict::Entry& entry : value.as<Dict>().entries()) {
    budget.step();
    if (entry.value.is_none() || entry.value.is_undefined()) continue;
    const std::string& key = text_argument(entry.key, "xmlattr");
    if (key.find_first_of(" \t\n\r\f\v/>=") != std::string::npos) {
      fail(Fault::kValue, "Invalid character in attribute name: {}", quote(key));
    }
    if (!out.empty()) out += ' ';
    out += fmt::format("{}=\"{}\"", text_of(escape(budget, entry.key)),
                       text_of(escape(budget, entry.value)));
    budget.expect(out.size());
  }
  if (bool_argument(autospace, true) && !out.empty()) out = fmt::format(" {}", out);
  return make_string(budget, std::move(out), in.autoescape());
}

Value filter_filesizeformat(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [binary] = bind<1>(arguments, "filesizeformat", {"binary?"});
  double bytes = 0;
  if (!value.is_string()) {
    bytes = float_of(value);
  } else if (!parse_float(text_of(value), bytes)) {
    fail(Fault::kValue, "could not convert string to float: {}", quote(text_of(value)));
  }
  const bool is_binary = bool_argument(binary, false);
  const double base = is_binary ? 1024 : 1000;
  if (bytes == 1) return make_string(in.budget(), "1 Byte");
  if (bytes < base) {
    return make_string(in.budget(), fmt::format("{} Bytes", static_cast<int64_t>(bytes)));
  }
  static constexpr std::array<const char*, 8> kLetters = {"k", "M", "G", "T", "P", "E", "Z", "Y"};
  double unit = base * base;
  size_t index = 0;
  for (; index + 1 < kLetters.size() && bytes >= unit; ++index) unit *= base;
  std::string prefix = kLetters[index];
  if (is_binary) prefix = index == 0 ? "Ki" : prefix + "i";
  return make_string(in.budget(), fmt::format("{:.1f} {}B", base * bytes / unit, prefix));
}

}  // namespace nanovllm::jinja
