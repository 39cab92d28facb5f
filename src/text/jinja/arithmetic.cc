// + - * / // % ** and the signs, with Python's rules for signs, floors and overflow.
#include <cmath>

#include "text/jinja/operators.h"

namespace nanovllm::jinja {
namespace {

[[noreturn]] void fail_overflow() {
  fail(Fault::kOverflow, "integers are limited to 64 bits and the result is larger");
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
  const double result = std::pow(base, exponent);
  if (!std::isfinite(result) && std::isfinite(base) && std::isfinite(exponent)) {
    fail(Fault::kOverflow, "the power is out of range or complex");
  }
  return result;
}

// floor(a / b) and the remainder with the sign of b.
std::pair<double, double> divide_floor(double a, double b) {
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder == 0) {
    remainder = std::copysign(0.0, b);
  } else if ((b < 0) != (remainder < 0)) {
    remainder += b;
    quotient -= 1;
  }
  return {quotient == 0 ? std::copysign(0.0, a / b) : std::round(quotient), remainder};
}

Value combine_integers(BinaryOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflows = false;
  switch (op) {
    case BinaryOp::kAdd:
      overflows = __builtin_add_overflow(a, b, &result);
      break;
    case BinaryOp::kSub:
      overflows = __builtin_sub_overflow(a, b, &result);
      break;
    case BinaryOp::kMul:
      overflows = __builtin_mul_overflow(a, b, &result);
      break;
    case BinaryOp::kPow:
      if (b < 0) return Value::number(power(static_cast<double>(a), static_cast<double>(b)));
      return Value::integer(power(a, b));
    default:
      if (b == 0) fail(Fault::kArithmetic, "division by zero");
      if (op == BinaryOp::kDiv) {
        return Value::number(
            static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
      }
      if (b == -1) {  // INT64_MIN / -1 overflows, and the processor traps on it
        overflows = op == BinaryOp::kFloorDiv && __builtin_sub_overflow(int64_t{0}, a, &result);
        break;
      }
      result = op == BinaryOp::kMod ? a % b : a / b;
      if (a % b != 0 && (a % b < 0) != (b < 0)) result += op == BinaryOp::kMod ? b : -1;
  }
  if (overflows) fail_overflow();
  return Value::integer(result);
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

Value add_strings(Budget& budget, Value a, const Value& b) {
  if (is_markup(a) != is_markup(b)) {
    // markupsafe escapes whichever of the two is not HTML yet.
    const Value left = escape(budget, a);
    const Value right = escape(budget, b);
    return make_string(budget, text_of(left) + text_of(right), true);
  }
  budget.work(text_of(b).size());
  if (a.as_object()->is_unique()) {
    a.as<String>().append(text_of(b));
    return a;
  }
  budget.work(text_of(a).size());
  return make_string(budget, text_of(a) + text_of(b), is_markup(a));
}

Value make_like(Budget& budget, const Value& sequence, Values items) {
  return sequence.is(Kind::kList) ? make_list(budget, std::move(items))
                                  : make_tuple(budget, std::move(items));
}

Value repeat(Budget& budget, const Value& sequence, const Value& times) {
  const auto count = static_cast<size_t>(std::max<int64_t>(0, times.as_int()));
  const size_t unit =
      sequence.is_string() ? text_of(sequence).size() : items_of(sequence).size() * sizeof(Value);
  size_t bytes = 0;
  if (__builtin_mul_overflow(unit, count, &bytes)) bytes = SIZE_MAX / 2;
  budget.expect(bytes);
  budget.work(bytes);
  std::string text;
  Values items;
  for (size_t i = 0; i < (unit == 0 ? 0 : count); ++i) {
    if (sequence.is_string()) {
      text += text_of(sequence);
    } else {
      items.insert(items.end(), items_of(sequence).begin(), items_of(sequence).end());
    }
  }
  if (sequence.is_string()) return make_string(budget, std::move(text), is_markup(sequence));
  return make_like(budget, sequence, std::move(items));
}

Value add_sequences(Budget& budget, const Value& a, const Value& b) {
  const size_t bytes = (items_of(a).size() + items_of(b).size()) * sizeof(Value);
  budget.work(bytes);
  budget.expect(bytes);
  Values items = items_of(a);
  items.insert(items.end(), items_of(b).begin(), items_of(b).end());
  return make_like(budget, a, std::move(items));
}

}  // namespace

double float_of(const Value& number) {
  if (number.is(Kind::kFloat)) return number.as_float();
  if (number.is(Kind::kBigInt)) return static_cast<double>(number.as_big());
  return static_cast<double>(number.as_int());
}

Value apply_binary(Budget& budget, BinaryOp op, Value a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return combine_integers(op, a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) {
    if (!a.is(Kind::kFloat) && !b.is(Kind::kFloat)) fail_overflow();
    return combine_floats(op, float_of(a), float_of(b));
  }
  const auto can_repeat = [](const Value& value) {
    return value.is_string() || value.is_sequence();
  };
  if (op == BinaryOp::kAdd) {
    if (a.is_string() && b.is_string()) return add_strings(budget, std::move(a), b);
    if (a.is_sequence() && a.kind() == b.kind()) return add_sequences(budget, a, b);
  } else if (op == BinaryOp::kMul) {
    if (can_repeat(a) && b.is_integer()) return repeat(budget, a, b);
    if (a.is_integer() && can_repeat(b)) return repeat(budget, b, a);
  } else if (op == BinaryOp::kMod && a.is_string()) {
    fail(Fault::kUnsupported, "the operator '%' of strings is not supported");
  }
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  static constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};
  fail(Fault::kType, "unsupported operand types for {}: '{}' and '{}'",
       kSymbols[static_cast<int>(op)], type_name(a), type_name(b));
}

Value apply_sign(bool negates, const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  if (value.is(Kind::kFloat)) return Value::number(negates ? -value.as_float() : value.as_float());
  if (value.is(Kind::kBigInt)) {
    if (!negates) return value;
    // -2**63 is the one negative number that is written with a larger one.
    if (value.as_big() == uint64_t{1} << 63) return Value::integer(INT64_MIN);
    fail_overflow();
  }
  if (!value.is_integer()) {
    fail(Fault::kType, "bad operand type for unary sign: '{}'", type_name(value));
  }
  return negates ? combine_integers(BinaryOp::kSub, 0, value.as_int())
                 : Value::integer(value.as_int());
}

}  // namespace nanovllm::jinja
