// format(value, specification): Python's format specification mini-language.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "text/jinja/format.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/text.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {
namespace {

struct Spec {
  char32_t fill = ' ';
  char align = 0;  // < > ^ =, 0 for the type's own
  char sign = 0;   // + - or space
  bool alternate = false;
  int64_t width = -1;
  char grouping = 0;  // , or _
  int64_t precision = -1;
  char type = 0;
};

bool is_align(char32_t c) { return c == '<' || c == '>' || c == '^' || c == '='; }

int64_t read_digits(std::string_view text, size_t& pos) {
  int64_t number = -1;
  while (pos < text.size() && text[pos] >= '0' && text[pos] <= '9') {
    number = checked_width(std::max<int64_t>(0, number) * 10 + (text[pos++] - '0'));
  }
  return number;
}

Spec parse_spec(std::string_view text, const Value& value) {
  Spec spec;
  size_t pos = 0;
  bool has_fill = false;
  if (!text.empty()) {
    size_t after = 0;
    const char32_t first = decode(text, after);
    if (after < text.size() && is_align(static_cast<unsigned char>(text[after]))) {
      spec.fill = first;
      spec.align = text[after];
      has_fill = true;
      pos = after + 1;
    } else if (is_align(first)) {
      spec.align = text[0];
      pos = 1;
    }
  }
  const auto next_is = [&](std::string_view set) {
    return pos < text.size() && set.find(text[pos]) != std::string_view::npos;
  };
  if (next_is("+- ")) spec.sign = text[pos++];
  if (next_is("#")) {
    spec.alternate = true;
    ++pos;
  }
  if (!has_fill && next_is("0")) {
    spec.fill = '0';
    if (spec.align == 0 && !value.is_string()) spec.align = '=';
    ++pos;
  }
  spec.width = read_digits(text, pos);
  if (next_is(",_")) spec.grouping = text[pos++];
  if (next_is(".")) {
    ++pos;
    spec.precision = read_digits(text, pos);
    if (spec.precision < 0) fail(Fault::kValue, "Format specifier missing precision");
  }
  if (pos < text.size()) spec.type = text[pos++];
  if (pos < text.size()) {
    fail(Fault::kValue, "Invalid format specifier '{}' for object of type '{}'", text,
         type_name(value));
  }
  return spec;
}

[[noreturn]] void fail_type(const Spec& spec, const Value& value) {
  fail(Fault::kValue, "Unknown format code '{}' for object of type '{}'", spec.type,
       type_name(value));
}

std::string group(std::string_view digits, char separator, size_t size) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % size == 0) out += separator;
    out += digits[i];
  }
  return out;
}

// The number with its sign: whole digits (to be grouped), then the rest.
std::string finish_number(Budget& budget, const Spec& spec, bool is_negative, std::string prefix,
                          std::string whole, const std::string& rest, size_t group_size) {
  const std::string sign = is_negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  prefix.insert(0, sign);
  const char align = spec.align == 0 ? '>' : spec.align;
  if (spec.grouping != 0) {
    if (align == '=' && spec.fill == '0') {
      // Zeros that fill up are grouped like the digits they go with. A separator never stands
      // first, so a width that would end on one is exceeded by one.
      const auto wanted = spec.width - static_cast<int64_t>(prefix.size() + rest.size());
      auto count = static_cast<int64_t>(whole.size());
      while (count + (count - 1) / static_cast<int64_t>(group_size) < wanted) ++count;
      whole = pad(budget, whole, count, '0', Align::kRight);
    }
    whole = group(whole, spec.grouping, group_size);
  }
  const std::string digits = whole + rest;
  if (align == '=') {
    const auto used = static_cast<int64_t>(count_code_points(prefix));
    return prefix + pad(budget, digits, spec.width - used, spec.fill, Align::kRight);
  }
  const Align side = align == '<' ? Align::kLeft : align == '^' ? Align::kCenter : Align::kRight;
  std::string text = prefix + digits;
  if (side != Align::kCenter) return pad(budget, text, spec.width, spec.fill, side);
  // format() centers with the smaller half on the left, unlike str.center().
  const auto length = static_cast<int64_t>(count_code_points(text));
  const int64_t missing = std::max<int64_t>(0, spec.width - length);
  text = pad(budget, text, length + missing / 2, spec.fill, Align::kRight);
  return pad(budget, text, spec.width, spec.fill, Align::kLeft);
}

std::string format_string(Budget& budget, Spec spec, const Value& value) {
  if (spec.type != 0 && spec.type != 's') fail_type(spec, value);
  if (spec.sign != 0) fail(Fault::kValue, "Sign not allowed in string format specifier");
  if (spec.alternate) {
    fail(Fault::kValue, "Alternate form (#) not allowed in string format specifier");
  }
  if (spec.align == '=') {
    fail(Fault::kValue, "'=' alignment not allowed in string format specifier");
  }
  if (spec.grouping != 0) fail(Fault::kValue, "Cannot specify '{}' with 's'.", spec.grouping);
  std::string_view text = text_of(value);
  if (spec.precision >= 0) {
    text = text.substr(0, code_point_offset(text, static_cast<size_t>(spec.precision)));
  }
  if (spec.align == 0) spec.align = '<';
  return finish_number(budget, spec, false, "", std::string(text), "", 3);
}

// Without a type but with a precision: like 'g', but with an exponent already where a number would
// otherwise end at its point, and with a digit behind the point where there is no exponent.
std::string general_digits(Budget& budget, double number, int64_t precision) {
  precision = std::max<int64_t>(1, precision);
  std::string scientific = float_digits(budget, number, 'e', precision - 1, false);
  const size_t e = scientific.find('e');
  if (e == std::string::npos) return scientific;  // inf and nan
  const int exponent = std::atoi(scientific.c_str() + e + 1);
  if (exponent >= -4 && exponent < precision - 1) {
    std::string digits = float_digits(budget, number, 'g', precision, false);
    if (digits.find('.') == std::string::npos) digits += ".0";
    return digits;
  }
  std::string mantissa = scientific.substr(0, e);
  if (mantissa.find('.') != std::string::npos) {
    mantissa.erase(mantissa.find_last_not_of('0') + 1);
    if (mantissa.back() == '.') mantissa.pop_back();
  }
  return mantissa + scientific.substr(e);
}

std::string format_float(Budget& budget, const Spec& spec, const Value& value) {
  const double number = float_of(value);
  const bool is_negative = std::signbit(number) && !std::isnan(number);
  std::string digits;
  if (spec.type == 0 && spec.precision < 0) {
    digits = float_repr(std::abs(number));
  } else if (spec.type == 0) {
    digits = general_digits(budget, number, spec.precision);
  } else {
    char type = spec.type;
    if (type == 'n') type = 'g';
    const bool is_percent = type == '%';
    int64_t precision = spec.precision < 0 ? 6 : spec.precision;
    if ((type == 'g' || type == 'G') && precision == 0) precision = 1;
    digits = float_digits(budget, is_percent ? number * 100 : number, is_percent ? 'f' : type,
                          precision, spec.alternate);
    if (is_percent) digits += '%';
  }
  const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
  return finish_number(budget, spec, is_negative, "", digits.substr(0, whole), digits.substr(whole),
                       3);
}

std::string format_integer(Budget& budget, Spec spec, const Value& value) {
  switch (spec.type) {
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
    case '%':
      return format_float(budget, spec, value);
    default:
      break;
  }
  if (spec.precision >= 0) {
    fail(Fault::kValue, "Precision not allowed in integer format specifier");
  }
  const bool is_negative = value.is_integer() && value.as_int() < 0;
  const uint64_t magnitude = value.is(Kind::kBigInt) ? value.as_big()
                             : is_negative           ? 0 - static_cast<uint64_t>(value.as_int())
                                                     : static_cast<uint64_t>(value.as_int());
  int base = 10;
  switch (spec.type) {
    case 'b':
      base = 2;
      break;
    case 'o':
      base = 8;
      break;
    case 'x':
    case 'X':
      base = 16;
      break;
    case 'c': {
      if (is_negative || magnitude > 0x10FFFF) {
        fail(Fault::kOverflow, "%c arg not in range(0x110000)");
      }
      std::string character;
      append_utf8(character, static_cast<char32_t>(magnitude));
      if (spec.align == 0) spec.align = '<';
      return finish_number(budget, spec, false, "", character, "", 3);
    }
    case 0:
    case 'd':
    case 'n':
      break;
    default:
      fail_type(spec, value);
  }
  if (spec.grouping == ',' && base != 10) {
    fail(Fault::kValue, "Cannot specify ',' with '{}'.", spec.type);
  }
  std::string prefix;
  if (spec.alternate && base != 10) prefix = std::string("0") + spec.type;
  return finish_number(budget, spec, is_negative, prefix,
                       integer_digits(magnitude, base, spec.type == 'X'), "", base == 10 ? 3 : 4);
}

}  // namespace

int64_t checked_width(int64_t width) {
  if (width > kMaxFormatWidth || width < -kMaxFormatWidth) {
    fail(Fault::kLimit, "widths and precisions are limited to {}", kMaxFormatWidth);
  }
  return width;
}

std::string integer_digits(uint64_t magnitude, int base, bool upper_case) {
  const char* digits = upper_case ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string out;
  do {
    out += digits[magnitude % static_cast<unsigned>(base)];
    magnitude /= static_cast<unsigned>(base);
  } while (magnitude != 0);
  std::reverse(out.begin(), out.end());
  return out;
}

std::string float_digits(Budget& budget, double value, char type, int64_t precision,
                         bool alternate) {
  budget.work(static_cast<size_t>(precision));
  const bool is_upper = type >= 'A' && type <= 'Z';
  if (std::isnan(value)) return is_upper ? "NAN" : "nan";
  if (std::isinf(value)) return is_upper ? "INF" : "inf";
  const std::string pattern = std::string(alternate ? "%#.*" : "%.*") + type;
  // 310 digits before the point at most.
  std::string out(static_cast<size_t>(precision) + 330, '\0');
  const int length = std::snprintf(out.data(), out.size(), pattern.c_str(),
                                   static_cast<int>(precision), std::abs(value));
  out.resize(static_cast<size_t>(std::max(0, length)));
  return out;
}

std::string to_ascii(Budget& budget, const Value& value) {
  const std::string text = to_repr(budget, value);
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = decode(text, pos);
    const auto code = static_cast<uint32_t>(c);
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else if (c < 0x100) {
      out += fmt::format("\\x{:02x}", code);
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04x}", code);
    } else {
      out += fmt::format("\\U{:08x}", code);
    }
  }
  return out;
}

std::string format_value(Interpreter& in, const Value& value, std::string_view specification) {
  if (specification.empty()) return to_str(in.budget(), value);
  switch (value.kind()) {
    case Kind::kString:
      return format_string(in.budget(), parse_spec(specification, value), value);
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kBigInt:
      return format_integer(in.budget(), parse_spec(specification, value), value);
    case Kind::kFloat: {
      const Spec spec = parse_spec(specification, value);
      if (spec.type != 0 && std::string_view("eEfFgGn%").find(spec.type) == std::string::npos) {
        fail_type(spec, value);
      }
      return format_float(in.budget(), spec, value);
    }
    default:
      fail(Fault::kType, "unsupported format string passed to {}.__format__", type_name(value));
  }
}

}  // namespace nanovllm::jinja
