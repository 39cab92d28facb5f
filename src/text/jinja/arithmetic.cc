// + - * / // % ** and the signs, with Python's rules for signs, floors and overflow.
#include <cmath>
#include <utility>

#include "text/jinja/format.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"

namespace nanovllm::jinja {
namespace {

constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};

const char* symbol(BinaryOp op) { return kSymbols[static_cast<int>(op)]; }

[[noreturn]] void fail_overflow() {
  fail(Fault::kOverflow, "integers are limited to 64 bits and the result is larger");
}

[[noreturn]] void fail_operands(BinaryOp op, const Value& a, const Value& b) {
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  fail(Fault::kType, "unsupported operand types for {}: '{}' and '{}'", symbol(op), type_name(a),
       type_name(b));
}

int64_t power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) fail_overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_overflow();
  }
  return result;
}

double power(double base, double exponent) {
  if (base == 0 && exponent < 0) {
    fail(Fault::kArithmetic, "0.0 cannot be raised to a negative power");
  }
  if (base < 0 && std::isfinite(exponent) && std::floor(exponent) != exponent) {
    fail(Fault::kUnsupported,
         "complex numbers, as from a negative number to the power of {}, are "
         "not supported",
         exponent);
  }
  const double result = std::pow(base, exponent);
  if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent)) {
    fail(Fault::kOverflow, "the power is out of range");
  }
  return result;
}

// floor(a / b) and the remainder with the sign of b.
std::pair<double, double> divide_floor(double a, double b) {
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0) {
    if ((b < 0) != (remainder < 0)) {
      remainder += b;
      quotient -= 1;
    }
  } else {
    remainder = std::copysign(0.0, b);
  }
  if (quotient == 0) return {std::copysign(0.0, a / b), remainder};
  double floored = std::floor(quotient);
  if (quotient - floored > 0.5) floored += 1;
  return {floored, remainder};
}

Value combine_integers(BinaryOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case BinaryOp::kAdd:
      if (__builtin_add_overflow(a, b, &result)) fail_overflow();
      return Value::integer(result);
    case BinaryOp::kSub:
      if (__builtin_sub_overflow(a, b, &result)) fail_overflow();
      return Value::integer(result);
    case BinaryOp::kMul:
      if (__builtin_mul_overflow(a, b, &result)) fail_overflow();
      return Value::integer(result);
    case BinaryOp::kPow:
      if (b >= 0) return Value::integer(power(a, b));
      return Value::number(power(static_cast<double>(a), static_cast<double>(b)));
    default:
      break;
  }
  if (b == 0) fail(Fault::kArithmetic, "division by zero");
  if (op == BinaryOp::kDiv) {
    return Value::number(
        static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
  }
  if (b == -1) {  // INT64_MIN / -1 overflows, and the processor traps on it
    if (op == BinaryOp::kMod) return Value::integer(0);
    if (__builtin_sub_overflow(int64_t{0}, a, &result)) fail_overflow();
    return Value::integer(result);
  }
  const int64_t quotient = a / b;
  const int64_t remainder = a % b;
  const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
  if (op == BinaryOp::kFloorDiv) return Value::integer(adjust ? quotient - 1 : quotient);
  return Value::integer(adjust ? remainder + b : remainder);
}

Value combine_floats(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return Value::number(a + b);
    case BinaryOp::kSub:
      return Value::number(a - b);
    case BinaryOp::kMul:
      return Value::number(a * b);
    case BinaryOp::kPow:
      return Value::number(power(a, b));
    default:
      break;
  }
  if (b == 0) fail(Fault::kArithmetic, "float division by zero");
  if (op == BinaryOp::kDiv) return Value::number(a / b);
  const auto [quotient, remainder] = divide_floor(a, b);
  return Value::number(op == BinaryOp::kFloorDiv ? quotient : remainder);
}

Value combine_numbers(BinaryOp op, const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return combine_integers(op, a.as_int(), b.as_int());
  if (a.is(Kind::kFloat) || b.is(Kind::kFloat)) {
    return combine_floats(op, float_of(a), float_of(b));
  }
  fail_overflow();
}

Value add_strings(Budget& budget, Value a, const Value& b) {
  if (is_markup(a) == is_markup(b)) {
    budget.work(text_of(b).size());
    if (a.as_object()->is_unique()) {
      a.as<String>().append(text_of(b));
      return a;
    }
    budget.work(text_of(a).size());
    std::string text;
    text.reserve(text_of(a).size() + text_of(b).size());
    text += text_of(a);
    text += text_of(b);
    return make_string(budget, std::move(text), is_markup(a));
  }
  // markupsafe escapes whichever of the two is not HTML yet.
  const Value left = escape(budget, a);
  const Value right = escape(budget, b);
  return make_string(budget, text_of(left) + text_of(right), true);
}

Value add_sequences(Budget& budget, const Value& a, const Value& b) {
  const Values& left = items_of(a);
  const Values& right = items_of(b);
  const size_t bytes = (left.size() + right.size()) * sizeof(Value);
  budget.work(bytes);
  budget.expect(bytes);
  Values items;
  items.reserve(left.size() + right.size());
  items.insert(items.end(), left.begin(), left.end());
  items.insert(items.end(), right.begin(), right.end());
  return make<List>(a.kind(), budget, std::move(items));
}

Value repeat(Budget& budget, const Value& sequence, const Value& times) {
  if (times.is(Kind::kBigInt)) fail_overflow();
  const auto count = static_cast<size_t>(std::max<int64_t>(0, times.as_int()));
  const size_t unit =
      sequence.is_string() ? text_of(sequence).size() : items_of(sequence).size() * sizeof(Value);
  size_t bytes = 0;
  if (__builtin_mul_overflow(unit, count, &bytes)) bytes = SIZE_MAX / 2;
  budget.expect(bytes);
  budget.work(bytes);
  if (sequence.is_string()) {
    std::string text;
    text.reserve(bytes);
    if (unit > 0) {
      for (size_t i = 0; i < count; ++i) text += text_of(sequence);
    }
    return make_string(budget, std::move(text), is_markup(sequence));
  }
  Values items;
  items.reserve(bytes / sizeof(Value));
  if (unit > 0) {
    for (size_t i = 0; i < count; ++i) {
      items.insert(items.end(), items_of(sequence).begin(), items_of(sequence).end());
    }
  }
  return make<List>(sequence.kind(), budget, std::move(items));
}

bool can_repeat(const Value& value) { return value.is_string() || value.is_sequence(); }
bool can_count(const Value& value) { return value.is_integer() || value.is(Kind::kBigInt); }

}  // namespace

double float_of(const Value& number) {
  switch (number.kind()) {
    case Kind::kBool:
    case Kind::kInt:
      return static_cast<double>(number.as_int());
    case Kind::kBigInt:
      return static_cast<double>(number.as_big());
    case Kind::kFloat:
      return number.as_float();
    case Kind::kUndefined:
      fail_undefined(number);
    default:
      fail(Fault::kType, "a number is needed here, not '{}'", type_name(number));
  }
}

Value apply_binary(Interpreter& in, BinaryOp op, Value a, const Value& b) {
  Budget& budget = in.budget();
  if (a.is_number() && b.is_number()) return combine_numbers(op, a, b);
  switch (op) {
    case BinaryOp::kAdd:
      if (a.is_string() && b.is_string()) return add_strings(budget, std::move(a), b);
      if (a.is_sequence() && a.kind() == b.kind()) return add_sequences(budget, a, b);
      break;
    case BinaryOp::kMul:
      if (can_repeat(a) && can_count(b)) return repeat(budget, a, b);
      if (can_count(a) && can_repeat(b)) return repeat(budget, b, a);
      break;
    case BinaryOp::kMod:
      if (a.is_string()) return format_percent(in, a, b);
      break;
    default:
      break;
  }
  fail_operands(op, a, b);
}

Value negate(const Value& value) {
  if (value.is(Kind::kFloat)) return Value::number(-value.as_float());
  if (value.is_undefined()) fail_undefined(value);
  if (value.is(Kind::kBigInt)) {
    // -2**63 is the one negative number that is written with a larger one.
    if (value.as_big() == uint64_t{1} << 63) return Value::integer(INT64_MIN);
    fail_overflow();
  }
  if (!value.is_integer()) {
    fail(Fault::kType, "bad operand type for unary -: '{}'", type_name(value));
  }
  int64_t result = 0;
  if (__builtin_sub_overflow(int64_t{0}, value.as_int(), &result)) fail_overflow();
  return Value::integer(result);
}

Value posit(const Value& value) {
  if (value.is(Kind::kFloat) || value.is(Kind::kBigInt)) return value;
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_integer()) {
    fail(Fault::kType, "bad operand type for unary +: '{}'", type_name(value));
  }
  return Value::integer(value.as_int());
}

}  // namespace nanovllm::jinja
