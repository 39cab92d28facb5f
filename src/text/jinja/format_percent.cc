// "..." % values, by the rules of CPython's unicode_format().
#include <cmath>

#include "text/jinja/format.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/text.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {
namespace {

struct Conversion {
  bool left = false, plus = false, space = false, alternate = false, zero = false;
  int64_t width = -1;
  int64_t precision = -1;
  char type = 0;
};

class PercentFormatter {
 public:
  PercentFormatter(Interpreter& in, const Value& format, const Value& values)
      : in_(in), format_(text_of(format)), values_(values), markup_(is_markup(format)) {}

  Value run() {
    Budget& budget = in_.budget();
    while (pos_ < format_.size()) {
      if (format_[pos_] != '%') {
        const size_t next = std::min(format_.find('%', pos_), format_.size());
        out_ += format_.substr(pos_, next - pos_);
        pos_ = next;
        continue;
      }
      ++pos_;
      budget.step();
      format_one();
      budget.expect(out_.size());
    }
    budget.work(out_.size());
    check_all_used();
    return make_string(budget, std::move(out_), markup_);
  }

 private:
  bool is_tuple() const { return values_.is(Kind::kTuple); }
  // What Python takes for a mapping, so that nothing is said about values that are not used.
  bool is_mapping() const {
    return values_.is(Kind::kDict) || values_.is(Kind::kList) || values_.is(Kind::kRange) ||
           values_.is_undefined();
  }

  void check_all_used() const {
    const size_t count = is_tuple() ? items_of(values_).size() : 1;
    if (used_ < count && !is_mapping()) {
      fail(Fault::kType, "not all arguments converted during string formatting");
    }
  }

  Value next_value() {
    const size_t count = is_tuple() ? items_of(values_).size() : 1;
    if (used_ >= count) fail(Fault::kType, "not enough arguments for format string");
    ++used_;
    return is_tuple() ? items_of(values_)[used_ - 1] : values_;
  }

  char peek() const {
    if (pos_ >= format_.size()) fail(Fault::kValue, "incomplete format");
    return format_[pos_];
  }

  Value read_key() {
    if (!values_.is(Kind::kDict)) {
      if (values_.is_undefined()) fail_undefined(values_);
      fail(Fault::kType, "format requires a mapping");
    }
    const size_t begin = ++pos_;
    for (int depth = 1; depth > 0; ++pos_) {
      if (pos_ >= format_.size()) fail(Fault::kValue, "incomplete format key");
      if (format_[pos_] == '(') ++depth;
      if (format_[pos_] == ')') --depth;
    }
    const std::string_view key = format_.substr(begin, pos_ - 1 - begin);
    const Value* found = values_.as<Dict>().find(key);
    if (found == nullptr) fail(Fault::kLookup, "{}", quote(key));
    return *found;
  }

  // Digits, or '*' for a value that says how many; -1 when there is neither.
  int64_t read_number() {
    if (peek() == '*') {
      ++pos_;
      const Value value = next_value();
      if (!value.is_integer()) fail(Fault::kType, "* wants int");
      return value.as_int();
    }
    int64_t number = -1;
    while (peek() >= '0' && peek() <= '9') {
      number = std::max<int64_t>(0, number) * 10 + (format_[pos_++] - '0');
      checked_width(number);
    }
    return number;
  }

  Conversion read_conversion() {
    Conversion conversion;
    for (;; ++pos_) {
      const char flag = peek();
      if (flag == '-')
        conversion.left = true;
      else if (flag == '+')
        conversion.plus = true;
      else if (flag == ' ')
        conversion.space = true;
      else if (flag == '#')
        conversion.alternate = true;
      else if (flag == '0')
        conversion.zero = true;
      else
        break;
    }
    conversion.width = read_number();
    if (conversion.width < -1) {
      conversion.left = true;
      conversion.width = -conversion.width;
    }
    checked_width(conversion.width);
    if (peek() == '.') {
      ++pos_;
      conversion.precision = checked_width(std::max<int64_t>(0, read_number()));
    }
    if (peek() == 'h' || peek() == 'l' || peek() == 'L') ++pos_;
    conversion.type = peek();
    ++pos_;
    return conversion;
  }

  void format_one() {
    Value keyed;
    if (pos_ < format_.size() && format_[pos_] == '(') keyed = read_key();
    const Conversion conversion = read_conversion();
    if (conversion.type == '%') {
      out_ += '%';
      return;
    }
    const Value value = keyed.is_missing() ? next_value() : keyed;
    switch (conversion.type) {
      case 's':
      case 'r':
      case 'a':
        return put_text(conversion, text(conversion.type, value));
      case 'c':
        return put_text(conversion, character(value));
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        return put_integer(conversion, value);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        const double number = float_of(value);
        const int64_t precision = conversion.precision < 0 ? 6 : conversion.precision;
        return put_number(
            conversion, std::signbit(number) && !std::isnan(number), "",
            float_digits(in_.budget(), number, conversion.type, precision, conversion.alternate));
      }
      default:
        fail(Fault::kValue, "unsupported format character '{}'", conversion.type);
    }
  }

  std::string text(char type, const Value& value) {
    Budget& budget = in_.budget();
    if (!markup_) {
      if (type == 's') return to_str(budget, value);
      return type == 'r' ? to_repr(budget, value) : to_ascii(budget, value);
    }
    if (type == 's') return text_of(escape(budget, value));
    return escape_html(type == 'r' ? to_repr(budget, value) : to_ascii(budget, value));
  }

  std::string character(const Value& value) {
    std::string one;
    if (value.is_integer()) {
      if (value.as_int() < 0 || value.as_int() > 0x10FFFF) {
        fail(Fault::kOverflow, "%c arg not in range(0x110000)");
      }
      append_utf8(one, static_cast<char32_t>(value.as_int()));
    } else if (value.is_string() && value.as<String>().length() == 1) {
      one = text_of(value);
    } else {
      fail(Fault::kType, "%c requires int or char");
    }
    return one;
  }

  void put_text(const Conversion& conversion, std::string_view text) {
    if (conversion.precision >= 0 && conversion.type != 'c') {
      text = text.substr(0, code_point_offset(text, static_cast<size_t>(conversion.precision)));
    }
    out_ += pad(in_.budget(), text, conversion.width, ' ',
                conversion.left ? Align::kLeft : Align::kRight);
  }

  void put_integer(const Conversion& conversion, const Value& value) {
    const bool is_decimal =
        conversion.type == 'd' || conversion.type == 'i' || conversion.type == 'u';
    uint64_t magnitude = 0;
    bool is_negative = false;
    if (value.is(Kind::kBigInt)) {
      magnitude = value.as_big();
    } else if (value.is_integer()) {
      is_negative = value.as_int() < 0;
      magnitude = is_negative ? 0 - static_cast<uint64_t>(value.as_int())
                              : static_cast<uint64_t>(value.as_int());
    } else if (value.is(Kind::kFloat) && is_decimal) {
      const double number = std::trunc(value.as_float());
      if (!std::isfinite(number)) fail(Fault::kOverflow, "cannot convert float to integer");
      if (std::abs(number) >= 0x1p64) fail(Fault::kOverflow, "integers are limited to 64 bits");
      is_negative = number < 0;
      magnitude = static_cast<uint64_t>(std::abs(number));
    } else {
      if (value.is_undefined()) fail_undefined(value);
      fail(Fault::kType, "%{} format: a number is required, not {}", conversion.type,
           type_name(value));
    }
    const int base = is_decimal ? 10 : conversion.type == 'o' ? 8 : 16;
    std::string digits = integer_digits(magnitude, base, conversion.type == 'X');
    if (conversion.precision > static_cast<int64_t>(digits.size())) {
      digits.insert(0, static_cast<size_t>(conversion.precision) - digits.size(), '0');
    }
    std::string prefix;
    if (conversion.alternate && !is_decimal) prefix = std::string("0") + conversion.type;
    put_number(conversion, is_negative, prefix, digits);
  }

  // Zeros go between sign or prefix and the digits.
  void put_number(const Conversion& conversion, bool is_negative, const std::string& prefix,
                  std::string digits) {
    const std::string sign = is_negative        ? "-"
                             : conversion.plus  ? "+"
                             : conversion.space ? " "
                                                : "";
    const auto used = static_cast<int64_t>(sign.size() + prefix.size());
    if (conversion.zero && !conversion.left) {
      digits = pad(in_.budget(), digits, conversion.width - used, '0', Align::kRight);
    }
    out_ += pad(in_.budget(), sign + prefix + digits, conversion.width, ' ',
                conversion.left ? Align::kLeft : Align::kRight);
  }

  Interpreter& in_;
  std::string_view format_;
  const Value& values_;
  const bool markup_;
  size_t pos_ = 0;
  size_t used_ = 0;  // values
  std::string out_;
};

}  // namespace

Value format_percent(Interpreter& in, const Value& format, const Value& values) {
  return PercentFormatter(in, format, values).run();
}

}  // namespace nanovllm::jinja
