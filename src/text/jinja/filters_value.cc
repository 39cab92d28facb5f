#include <cmath>
#include <cstdlib>

#include "text/jinja/filters.h"
#include "text/jinja/format.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/text.h"

namespace nanovllm::jinja {
namespace {

// int(number); throws kValue for nan and kOverflow for what 64 bits can't hold.
int64_t truncate(double number) {
  if (std::isnan(number)) fail(Fault::kValue, "cannot convert float NaN to integer");
  if (std::isinf(number)) fail(Fault::kOverflow, "cannot convert float infinity to integer");
  const double whole = std::trunc(number);
  if (whole < -0x1p63 || whole >= 0x1p63) {
    fail(Fault::kOverflow, "integers are limited to 64 bits");
  }
  return static_cast<int64_t>(whole);
}

// round(number, digits) of a float: to the nearest decimal of its exact value, ties to even.
double round_float(Budget& budget, double number, int64_t digits) {
  if (!std::isfinite(number) || digits > 323) return number;
  if (digits < -308) return std::copysign(0.0, number);
  if (digits >= 0) {
    const std::string text = float_digits(budget, number, 'f', digits, false);
    return std::copysign(std::strtod(text.c_str(), nullptr), number);
  }
  // Below the point: digits before it are dropped from the exact integer part.
  const std::string exact = float_digits(budget, number, 'e', 25, false);
  const int exponent = std::atoi(exact.c_str() + exact.find('e') + 1);
  const int64_t kept = exponent + digits;  // significant digits kept, less one
  if (kept < -1) return std::copysign(0.0, number);
  const double unit = std::pow(10.0, static_cast<double>(-digits));
  const long double quotient = std::fabs(static_cast<long double>(number)) / unit;
  return std::copysign(static_cast<double>(std::nearbyint(quotient) * unit), number);
}

// round(number, digits) of an int: an int, ties to even.
int64_t round_integer(int64_t number, int64_t digits) {
  if (digits >= 0) return number;
  if (digits < -18) return 0;
  int64_t unit = 1;
  for (int64_t i = digits; i < 0; ++i) unit *= 10;
  const int64_t rest = ((number % unit) + unit) % unit;
  const int64_t below = number - rest;
  const bool rounds_up = rest > unit / 2 || (rest == unit / 2 && (below / unit) % 2 != 0);
  return rounds_up ? below + unit : below;
}

}  // namespace

Value filter_default(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [otherwise, boolean] = bind<2>(arguments, "default", {"default_value?", "boolean?"});
  if (!value.is_undefined() && !(bool_argument(boolean, false) && !is_truthy(value))) return value;
  return otherwise == nullptr ? make_string(in.budget(), "") : *otherwise;
}

Value filter_length(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "length");
  if (value.is(Kind::kLoop)) return Value::integer(value.as<Loop>().length(in));
  return Value::integer(length_of(value));
}

Value filter_int(Interpreter&, const Value& value, Arguments& arguments) {
  const auto [otherwise, base] = bind<2>(arguments, "int", {"default?", "base?"});
  Value fallback = otherwise == nullptr ? Value::integer(0) : *otherwise;
  switch (value.kind()) {
    case Kind::kUndefined:
      fail_undefined(value);
    case Kind::kBool:
    case Kind::kInt:
      return Value::integer(value.as_int());
    case Kind::kBigInt:
      return value;
    case Kind::kFloat:
      if (std::isnan(value.as_float())) return fallback;
      return Value::integer(truncate(value.as_float()));
    case Kind::kString: {
      const int64_t radix = int_argument(base, 10, "int");
      if (radix != 0 && (radix < 2 || radix > 36)) return fallback;
      int64_t number = 0;
      if (parse_int(text_of(value), static_cast<int>(radix), number)) return Value::integer(number);
      double real = 0;
      if (!parse_float(text_of(value), real) || !std::isfinite(real)) return fallback;
      return Value::integer(truncate(real));
    }
    default:
      return fallback;
  }
}

Value filter_float(Interpreter&, const Value& value, Arguments& arguments) {
  const auto [otherwise] = bind<1>(arguments, "float", {"default?"});
  switch (value.kind()) {
    case Kind::kUndefined:
      fail_undefined(value);
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kBigInt:
    case Kind::kFloat:
      return Value::number(float_of(value));
    case Kind::kString: {
      double number = 0;
      if (parse_float(text_of(value), number)) return Value::number(number);
      break;
    }
    default:
      break;
  }
  return otherwise == nullptr ? Value::number(0.0) : *otherwise;
}

Value filter_abs(Interpreter&, const Value& value, Arguments& arguments) {
  bind_none(arguments, "abs");
  if (value.is(Kind::kFloat)) return Value::number(std::abs(value.as_float()));
  if (value.is(Kind::kBigInt)) return value;
  if (!value.is_integer()) {
    fail(Fault::kType, "bad operand type for abs(): '{}'", type_name(value));
  }
  return value.as_int() < 0 ? negate(value) : Value::integer(value.as_int());
}

Value filter_round(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [precision, method] = bind<2>(arguments, "round", {"precision?", "method?"});
  const std::string how = method == nullptr ? "common" : to_str(in.budget(), *method);
  if (how != "common" && how != "ceil" && how != "floor") {
    fail(Fault::kRuntime, "method must be common, ceil or floor");
  }
  if (!value.is_integer() && !value.is(Kind::kFloat)) {
    fail(Fault::kType, "round() takes a number, not '{}'", type_name(value));
  }
  if (how == "common") {
    // With None, as without digits in Python, the result is an int.
    const bool to_integer = precision != nullptr && precision->is_none();
    const int64_t digits = to_integer ? 0 : int_argument(precision, 0, "round");
    if (value.is_integer()) return Value::integer(round_integer(value.as_int(), digits));
    const double rounded = round_float(in.budget(), value.as_float(), digits);
    return to_integer ? Value::integer(truncate(rounded)) : Value::number(rounded);
  }
  const int64_t digits = int_argument(precision, 0, "round");
  const double factor = std::pow(10.0, static_cast<double>(digits));
  const double scaled = float_of(value) * factor;
  if (!std::isfinite(scaled)) fail(Fault::kOverflow, "cannot convert float infinity to integer");
  return Value::number((how == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / factor);
}

Value filter_attr(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [name] = bind<1>(arguments, "attr", {"name"});
  text_argument(*name, "attr");
  if (value.is_undefined()) fail_undefined(value);
  Value found = in.find_attribute(value, *name);
  return found.is_missing() ? in.make_undefined_item(value, *name) : found;
}

Value filter_unsupported(Interpreter&, const Value&, Arguments&) {
  fail(Fault::kUnsupported,
       "the filters pprint, random, striptags, urlize and wordwrap are not supported");
}

}  // namespace nanovllm::jinja
