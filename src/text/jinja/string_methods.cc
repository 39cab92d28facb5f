// The methods of str. On HTML (Markup) many of them escape their arguments and give HTML again.
#include <algorithm>

#include "text/jinja/format.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"
#include "text/jinja/text.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {
namespace {

// A result of the same kind of string as self.
Value like(Interpreter& in, const Value& self, std::string text) {
  in.budget().work(text.size());
  return make_string(in.budget(), std::move(text), is_markup(self));
}

Value list_like(Interpreter& in, const Value& self, const Pieces& pieces, bool is_tuple = false) {
  Values values;
  values.reserve(pieces.size());
  for (const std::string_view piece : pieces) values.push_back(like(in, self, std::string(piece)));
  return is_tuple ? make_tuple(in.budget(), std::move(values))
                  : make_list(in.budget(), std::move(values));
}

// An argument as the methods of Markup take it.
std::string argument_like(Interpreter& in, const Value& self, const Value& argument,
                          std::string_view function) {
  text_argument(argument, function);
  return is_markup(self) ? text_of(escape(in.budget(), argument)) : text_of(argument);
}

template <std::string (*Convert)(std::string_view)>
Value convert(Interpreter& in, const Value& self, Arguments& arguments) {
  bind_none(arguments, "str method");
  in.budget().work(text_of(self).size() * 4);
  return like(in, self, Convert(text_of(self)));
}

Value casefold(Interpreter& in, const Value& self, Arguments& arguments) {
  bind_none(arguments, "casefold");
  in.budget().work(text_of(self).size() * 4);
  return make_string(in.budget(), to_case_folded(text_of(self)));
}

template <Side kSide>
Value strip(Interpreter& in, const Value& self, Arguments& arguments) {
  const auto [chars] = bind<1>(arguments, "strip", {"chars?", "/"});
  const std::string_view text = text_of(self);
  if (chars == nullptr || chars->is_none()) {
    return like(in, self, std::string(strip_spaces(text, kSide)));
  }
  const std::string set = argument_like(in, self, *chars, "strip");
  in.budget().work(set.size() * 16);
  return like(in, self, std::string(strip_characters(text, set, kSide)));
}

template <bool kFromRight>
Value split_method(Interpreter& in, const Value& self, Arguments& arguments) {
  const auto [separator, max_splits] = bind<2>(arguments, "split", {"sep?", "maxsplit?"});
  const int64_t limit = int_argument(max_splits, -1, "split");
  const std::string& text = text_of(self);
  if (separator == nullptr || separator->is_none()) {
    return list_like(in, self,
                     kFromRight ? split_spaces_right(in.budget(), text, limit)
                                : split_spaces(in.budget(), text, limit));
  }
  const std::string& by = text_argument(*separator, "split");
  return list_like(
      in, self,
      kFromRight ? split_right(in.budget(), text, by, limit) : split(in.budget(), text, by, limit));
}

Value splitlines(Interpreter& in, const Value& self, Arguments& arguments) {
  const auto [keeps_ends] = bind<1>(arguments, "splitlines", {"keepends?"});
  return list_like(in, self,
                   split_lines(in.budget(), text_of(self), bool_argument(keeps_ends, false)));
}

template <bool kFromRight>
Value partition(Interpreter& in, const Value& self, Arguments& arguments) {
  const auto [separator] = bind<1>(arguments, "partition", {"sep", "/"});
  const std::string by = argument_like(in, self, *separator, "partition");
  if (by.empty()) fail(Fault::kValue, "empty separator");
  const std::string_view text = text_of(self);
  in.budget().work(text.size());
  const size_t found = kFromRight ? text.rfind(by) : text.find(by);
  if (found == std::string_view::npos) {
    return list_like(in, self, kFromRight ? Pieces{"", "", text} : Pieces{text, "", ""}, true);
  }
  return list_like(in, self, {text.substr(0, found), by, text.substr(found + by.size())}, true);
}

Value replace(Interpreter& in, const Value& self, Arguments& arguments) {
  const auto [from, to, count] = bind<3>(arguments, "replace", {"old", "new", "count?", "/"});
  return like(
      in, self,
      replace_all(in.budget(), text_of(self), argument_like(in, self, *from, "replace"),
                  argument_like(in, self, *to, "replace"), int_argument(count, -1, "replace")));
}

Value join(Interpreter& in, const Value& self, Arguments& arguments) {
  const auto [iterable] = bind<1>(arguments, "join", {"iterable", "/"});
  const bool markup = is_markup(self);
  std::string out;
  int64_t index = 0;
  in.for_each(*iterable, [&](const Value& item) {
    if (index++ > 0) out += text_of(self);
    if (markup) {
      out += text_of(escape(in.budget(), item));
    } else if (!item.is_string()) {
      fail(Fault::kType, "sequence item {}: expected str instance, {} found", index - 1,
           type_name(item));
    } else {
      out += text_of(item);
    }
    in.budget().expect(out.size());
    return true;
  });
  return like(in, self, std::move(out));
}

template <Align kAlign>
Value justify(Interpreter& in, const Value& self, Arguments& arguments) {
  const auto [width, fill] = bind<2>(arguments, "justify", {"width", "fillchar?", "/"});
  char32_t character = ' ';
  if (fill != nullptr) {
    const std::string text = argument_like(in, self, *fill, "justify");
    size_t pos = 0;
    if (!text.empty()) character = decode(text, pos);
    if (text.empty() || pos != text.size()) {
      fail(Fault::kType, "the fill character must be exactly one character long");
    }
  }
  return like(
      in, self,
      pad(in.budget(), text_of(self), int_argument(width, 0, "justify"), character, kAlign));
}

Value zfill(Interpreter& in, const Value& self, Arguments& arguments) {
  const auto [width] = bind<1>(arguments, "zfill", {"width", "/"});
  std::string_view text = text_of(self);
  const bool has_sign = text.starts_with('-') || text.starts_with('+');
  std::string sign(text.substr(0, has_sign ? 1 : 0));
  text.remove_prefix(sign.size());
  const int64_t wanted = int_argument(width, 0, "zfill");
  return like(in, self,
              sign + pad(in.budget(), text, has_sign ? wanted - 1 : wanted, '0', Align::kRight));
}

Value expandtabs(Interpreter& in, const Value& self, Arguments& arguments) {
  const auto [size] = bind<1>(arguments, "expandtabs", {"tabsize?"});
  const int64_t tab = int_argument(size, 8, "expandtabs");
  const std::string& text = text_of(self);
  std::string out;
  int64_t column = 0;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = decode(text, pos);
    if (c == '\t') {
      const int64_t spaces = tab > 0 ? tab - column % tab : 0;
      in.budget().work(static_cast<size_t>(spaces));
      in.budget().expect(out.size() + static_cast<size_t>(spaces));
      out.append(static_cast<size_t>(spaces), ' ');
      column += spaces;
    } else {
      append_utf8(out, c);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  }
  return like(in, self, std::move(out));
}

template <bool kPrefix>
Value remove_affix(Interpreter& in, const Value& self, Arguments& arguments) {
  const auto [affix] = bind<1>(arguments, "removeprefix", {"affix", "/"});
  const std::string& text = text_of(self);
  const std::string& removed = text_argument(*affix, "removeprefix");
  if (kPrefix && text.starts_with(removed)) {
    return make_string(in.budget(), text.substr(removed.size()));
  }
  if (!kPrefix && text.ends_with(removed)) {
    return make_string(in.budget(), text.substr(0, text.size() - removed.size()));
  }
  return make_string(in.budget(), text);
}

// The part of a string that optional start and end arguments (in code points) leave.
struct Window {
  std::string_view text;
  int64_t start = 0;     // code points before it
  bool is_valid = true;  // start is within the string
};

Window window(Interpreter& in, const Value& self, const Value* start, const Value* end) {
  const std::string& text = text_of(self);
  if (start == nullptr && end == nullptr) return {text, 0, true};
  in.budget().work(text.size());
  const auto length = static_cast<int64_t>(self.as<String>().length());
  const auto index = [&](const Value* value, int64_t otherwise) {
    if (value == nullptr || value->is_none()) return otherwise;
    int64_t result = int_argument(value, 0, "str method");
    if (result < 0) result = std::max<int64_t>(0, result + length);
    return result;
  };
  const int64_t from = index(start, 0);
  const int64_t to = std::min(index(end, length), length);
  if (from > length || from > to) return {{}, from, false};
  const size_t begin = code_point_offset(text, static_cast<size_t>(from));
  const std::string_view rest = std::string_view(text).substr(begin);
  return {rest.substr(0, code_point_offset(rest, static_cast<size_t>(to - from))), from, true};
}

template <bool kFromRight, bool kMustBeThere>
Value find(Interpreter& in, const Value& self, Arguments& arguments) {
  const auto [part, start, end] = bind<3>(arguments, "find", {"sub", "start?", "end?", "/"});
  const Window within = window(in, self, start, end);
  const std::string& wanted = text_argument(*part, "find");
  in.budget().work(within.text.size());
  const size_t found = !within.is_valid ? std::string_view::npos
                       : kFromRight     ? within.text.rfind(wanted)
                                        : within.text.find(wanted);
  if (found != std::string_view::npos) {
    return Value::integer(within.start +
                          static_cast<int64_t>(count_code_points(within.text.substr(0, found))));
  }
  if (kMustBeThere) fail(Fault::kValue, "substring not found");
  return Value::integer(-1);
}

Value count(Interpreter& in, const Value& self, Arguments& arguments) {
  const auto [part, start, end] = bind<3>(arguments, "count", {"sub", "start?", "end?", "/"});
  const Window within = window(in, self, start, end);
  const std::string& wanted = text_argument(*part, "count");
  if (!within.is_valid) return Value::integer(0);
  in.budget().work(within.text.size());
  if (wanted.empty()) {
    return Value::integer(static_cast<int64_t>(count_code_points(within.text)) + 1);
  }
  int64_t times = 0;
  for (size_t at = within.text.find(wanted); at != std::string_view::npos;
       at = within.text.find(wanted, at + wanted.size())) {
    ++times;
  }
  return Value::integer(times);
}

template <bool kAtStart>
Value has_affix(Interpreter& in, const Value& self, Arguments& arguments) {
  constexpr const char* kName = kAtStart ? "startswith" : "endswith";
  const auto [affix, start, end] = bind<3>(arguments, kName, {"prefix", "start?", "end?", "/"});
  const Window within = window(in, self, start, end);
  const auto matches = [&](const Value& part) {
    if (!part.is_string()) {
      fail(Fault::kType, "{}() takes a string or a tuple of strings, not '{}'", kName,
           type_name(part));
    }
    return within.is_valid && (kAtStart ? within.text.starts_with(text_of(part))
                                        : within.text.ends_with(text_of(part)));
  };
  if (!affix->is(Kind::kTuple)) return Value::boolean(matches(*affix));
  for (const Value& part : items_of(*affix)) {
    if (matches(part)) return Value::boolean(true);
  }
  return Value::boolean(false);
}

// Whether the string is not empty and every character has the property.
template <bool (*Has)(char32_t)>
Value all_characters(Interpreter& in, const Value& self, Arguments& arguments) {
  bind_none(arguments, "str method");
  const std::string& text = text_of(self);
  in.budget().work(text.size());
  for (size_t pos = 0; pos < text.size();) {
    if (!Has(decode(text, pos))) return Value::boolean(false);
  }
  return Value::boolean(!text.empty());
}

Value isascii(Interpreter&, const Value& self, Arguments& arguments) {
  bind_none(arguments, "isascii");
  return Value::boolean(is_ascii(text_of(self)));
}

Value isprintable(Interpreter& in, const Value& self, Arguments& arguments) {
  if (text_of(self).empty()) {
    bind_none(arguments, "isprintable");
    return Value::boolean(true);
  }
  return all_characters<is_printable>(in, self, arguments);
}

Value isidentifier(Interpreter&, const Value& self, Arguments& arguments) {
  bind_none(arguments, "isidentifier");
  return Value::boolean(is_identifier(text_of(self)));
}

Value islower(Interpreter&, const Value& self, Arguments& arguments) {
  bind_none(arguments, "islower");
  return Value::boolean(is_lower_text(text_of(self)));
}

Value isupper(Interpreter&, const Value& self, Arguments& arguments) {
  bind_none(arguments, "isupper");
  return Value::boolean(is_upper_text(text_of(self)));
}

Value istitle(Interpreter&, const Value& self, Arguments& arguments) {
  bind_none(arguments, "istitle");
  const std::string& text = text_of(self);
  bool has_cased = false;
  bool within_word = false;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = decode(text, pos);
    if (is_upper(c) || is_title(c)) {
      if (within_word) return Value::boolean(false);
      within_word = has_cased = true;
    } else if (is_lower(c)) {
      if (!within_word) return Value::boolean(false);
      has_cased = true;
    } else {
      within_word = false;
    }
  }
  return Value::boolean(has_cased);
}

Value format_method(Interpreter& in, const Value& self, Arguments& arguments) {
  return format_braces(in, self, arguments);
}

Value format_map(Interpreter& in, const Value& self, Arguments& arguments) {
  const auto [mapping] = bind<1>(arguments, "format_map", {"mapping", "/"});
  Arguments fields;
  if (!mapping->is(Kind::kDict)) {
    fail(Fault::kType, "format_map() takes a mapping, not '{}'", type_name(*mapping));
  }
  for (const Dict::Entry& entry : mapping->as<Dict>().entries()) {
    if (entry.key.is_string()) fields.named.emplace_back(entry.key, entry.value);
  }
  return format_braces(in, self, fields);
}

Value unsupported(Interpreter&, const Value&, Arguments&) {
  fail(Fault::kUnsupported,
       "the string methods encode, maketrans and translate are not supported: templates have text "
       "only");
}

constexpr Builtin kMethods[] = {
    {"capitalize", convert<to_capitalized>},
    {"casefold", casefold},
    {"center", justify<Align::kCenter>},
    {"count", count},
    {"encode", unsupported},
    {"endswith", has_affix<false>},
    {"expandtabs", expandtabs},
    {"find", find<false, false>},
    {"format", format_method},
    {"format_map", format_map},
    {"index", find<false, true>},
    {"isalnum", all_characters<is_alnum>},
    {"isalpha", all_characters<is_alpha>},
    {"isascii", isascii},
    {"isdecimal", all_characters<is_decimal>},
    {"isdigit", all_characters<is_digit>},
    {"isidentifier", isidentifier},
    {"islower", islower},
    {"isnumeric", all_characters<is_numeric>},
    {"isprintable", isprintable},
    {"isspace", all_characters<is_space>},
    {"istitle", istitle},
    {"isupper", isupper},
    {"join", join},
    {"ljust", justify<Align::kLeft>},
    {"lower", convert<to_lower>},
    {"lstrip", strip<Side::kLeft>},
    {"maketrans", unsupported},
    {"partition", partition<false>},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"replace", replace},
    {"rfind", find<true, false>},
    {"rindex", find<true, true>},
    {"rjust", justify<Align::kRight>},
    {"rpartition", partition<true>},
    {"rsplit", split_method<true>},
    {"rstrip", strip<Side::kRight>},
    {"split", split_method<false>},
    {"splitlines", splitlines},
    {"startswith", has_affix<true>},
    {"strip", strip<Side::kBoth>},
    {"swapcase", convert<to_swapped_case>},
    {"title", convert<to_title>},
    {"translate", unsupported},
    {"upper", convert<to_upper>},
    {"zfill", zfill},
};

}  // namespace

BuiltinTable string_methods() { return kMethods; }

}  // namespace nanovllm::jinja
