// Truth, equality, order, hashing and membership; + - * / // % ** and the signs, with Python's
// rules for signs, floors and overflow.
#include "text/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <functional>

#include "text/jinja/interpreter.h"
#include "text/jinja/strings.h"

namespace nanovllm::jinja {
namespace {

// Wide enough to hold every 64-bit integer and every double exactly (x86-64; elsewhere nearly).
long double wide(const Value& number) {
  if (number.is(Kind::kFloat)) return number.as_float();
  if (number.is(Kind::kBigInt)) return static_cast<long double>(number.as_big());
  return static_cast<long double>(number.as_int());
}

bool equal_sequences(Budget& budget, const Values& a, const Values& b) {
  if (a.size() != b.size()) return false;
  const Nesting nesting(budget);
  for (size_t i = 0; i < a.size(); ++i) {
    budget.step();
    if (!a[i].is_same(b[i]) && !equal(budget, a[i], b[i])) return false;
  }
  return true;
}

bool equal_dicts(Budget& budget, const Value& a, const Value& b) {
  if (entries_of(a).size() != entries_of(b).size()) return false;
  const Nesting nesting(budget);
  for (const Dict::Entry& entry : entries_of(a)) {
    budget.step();
    const Value* other = b.as<Dict>().find(entry.key);
    if (other == nullptr) return false;
    if (!entry.value.is_same(*other) && !equal(budget, entry.value, *other)) return false;
  }
  return true;
}

const char* symbol_of(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return "+";
    case BinaryOp::kSub:
      return "-";
    case BinaryOp::kMul:
      return "*";
    case BinaryOp::kDiv:
      return "/";
    case BinaryOp::kFloorDiv:
      return "//";
    case BinaryOp::kMod:
      return "%";
    case BinaryOp::kPow:
      return "**";
  }
  return "";
}

const char* symbol_of(CompareOp op) {
  switch (op) {
    case CompareOp::kEq:
      return "==";
    case CompareOp::kNe:
      return "!=";
    case CompareOp::kLt:
      return "<";
    case CompareOp::kLe:
      return "<=";
    case CompareOp::kGt:
      return ">";
    case CompareOp::kGe:
      return ">=";
    case CompareOp::kIn:
      return "in";
    case CompareOp::kNotIn:
      return "not in";
  }
  return "";
}

bool holds(CompareOp op, std::partial_ordering order) {
  return op == CompareOp::kLt   ? std::is_lt(order)
         : op == CompareOp::kLe ? std::is_lteq(order)
         : op == CompareOp::kGt ? std::is_gt(order)
                                : std::is_gteq(order);
}

[[noreturn]] void fail_overflow() {
  fail("integers are limited to 64 bits and the result is larger");
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
    fail("0.0 cannot be raised to a negative power");
  }
  const double result = std::pow(base, exponent);
  if (!std::isfinite(result) && std::isfinite(base) && std::isfinite(exponent)) {
    fail("the power is out of range or complex");
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
    case BinaryOp::kDiv:
    case BinaryOp::kFloorDiv:
    case BinaryOp::kMod:
      if (b == 0) fail("division by zero");
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
  if (op == BinaryOp::kAdd) return Value::number(a + b);
  if (op == BinaryOp::kSub) return Value::number(a - b);
  if (op == BinaryOp::kMul) return Value::number(a * b);
  if (op == BinaryOp::kPow) return Value::number(power(a, b));
  if (b == 0) fail("float division by zero");
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

Value repeat(Budget& budget, const Value& sequence, const Value& times) {
  const auto count = static_cast<size_t>(std::max<int64_t>(0, times.as_int()));
  const auto repeated = [&](auto all, const auto& unit) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(unit.size() * sizeof(unit[0]), count, &bytes)) bytes = SIZE_MAX / 2;
    budget.expect(bytes);
    budget.work(bytes);
    for (size_t i = 0; i < count && bytes > 0; ++i) all.insert(all.end(), unit.begin(), unit.end());
    return all;
  };
  if (!sequence.is_string()) {
    return make_like(budget, sequence, repeated(Values(), items_of(sequence)));
  }
  return make_string(budget, repeated(std::string(), text_of(sequence)), is_markup(sequence));
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

bool is_truthy(const Value& value) {
  if (value.is_integer()) return value.as_int() != 0;
  if (value.is(Kind::kFloat)) return value.as_float() != 0;
  if (value.is_string()) return !text_of(value).empty();
  return !value.is_none() && !value.is_missing() && length_of(value) != 0;
}

int64_t length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) return static_cast<int64_t>(value.as<String>().length());
  if (value.is(Kind::kDict)) return static_cast<int64_t>(entries_of(value).size());
  const bool has_items = value.is_sequence() || value.is(Kind::kView);
  return has_items ? static_cast<int64_t>(items_of(value).size()) : -1;
}

bool equal(Budget& budget, const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.as_int() == b.as_int();
  if (a.is_number() && b.is_number()) return wide(a) == wide(b);
  if (a.kind() != b.kind()) return false;
  if (a.is_string()) {
    if (text_of(a).size() == text_of(b).size()) budget.work(text_of(a).size());
    return text_of(a) == text_of(b);
  }
  if (a.is(Kind::kDict)) return equal_dicts(budget, a, b);
  if (a.is_sequence() || a.is(Kind::kView)) {
    return equal_sequences(budget, items_of(a), items_of(b));
  }
  return a.is_undefined() || a.is_same(b);
}

bool compare(Budget& budget, CompareOp op, const Value& a, const Value& b) {
  if (op == CompareOp::kEq) return equal(budget, a, b);
  if (op == CompareOp::kNe) return !equal(budget, a, b);
  if (a.is_number() && b.is_number()) return holds(op, wide(a) <=> wide(b));
  // The order of UTF-8 is the order of the code points.
  if (a.is_string() && b.is_string()) {
    budget.work(std::min(text_of(a).size(), text_of(b).size()));
    return holds(op, text_of(a) <=> text_of(b));
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    const Nesting nesting(budget);
    const Values& left = items_of(a);
    const Values& right = items_of(b);
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      budget.step();
      if (left[i].is_same(right[i]) || equal(budget, left[i], right[i])) continue;
      return compare(budget, op, left[i], right[i]);
    }
    return holds(op, left.size() <=> right.size());
  }
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  fail("'{}' not supported between '{}' and '{}'", symbol_of(op), type_name(a), type_name(b));
}

size_t hash_value(Budget& budget, const Value& value) {
  if (value.is_string()) return value.as<String>().hash();
  // Numbers that are equal must hash alike: 1 == 1.0 == True.
  if (value.is_number()) return std::hash<double>{}(float_of(value));
  if (value.is(Kind::kList) || value.is(Kind::kDict) || value.is(Kind::kView)) {
    fail("unhashable type: '{}'", type_name(value));
  }
  if (!value.is(Kind::kTuple)) return static_cast<size_t>(value.kind());
  const Nesting nesting(budget);
  size_t hash = 0x9E3779B97F4A7C15ULL;
  for (const Value& item : items_of(value)) {
    budget.step();
    hash = (hash ^ hash_value(budget, item)) * 0x100000001B3ULL;
  }
  return hash;
}

bool contains(Interpreter& in, const Value& container, const Value& item) {
  if (container.is(Kind::kDict)) return container.as<Dict>().find(item) != nullptr;
  if (container.is_string()) {
    if (!item.is_string()) {
      fail("'in <string>' requires a string on its left, not '{}'", type_name(item));
    }
    in.budget().work(text_of(container).size());
    return find_text(text_of(container), text_of(item)) != std::string::npos;
  }
  const Value list = in.to_list(container);
  for (const Value& element : items_of(list)) {
    in.budget().step();
    if (element.is_same(item) || equal(in.budget(), element, item)) return true;
  }
  return false;
}

Values pairs_of(Budget& budget, const Value& dict) {
  Values pairs;
  for (const Dict::Entry& entry : entries_of(dict)) {
    budget.step();
    pairs.push_back(make_tuple(budget, {entry.key, entry.value}));
  }
  return pairs;
}

Value join_characters(Budget& budget, const Values& characters, bool markup) {
  std::string text;
  for (const Value& character : characters) text += text_of(character);
  return make_string(budget, std::move(text), markup);
}

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
    fail("the operator '%' of strings is not supported");
  }
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  fail("unsupported operand types for {}: '{}' and '{}'", symbol_of(op), type_name(a),
       type_name(b));
}

Value apply_sign(bool negates, const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_number()) fail("bad operand type for unary sign: '{}'", type_name(value));
  if (!negates) return value.is(Kind::kBool) ? Value::integer(value.as_int()) : value;
  if (value.is(Kind::kFloat)) return Value::number(-value.as_float());
  // -2**63 is the one negative number that is written with a larger one.
  if (value.is(Kind::kBigInt) && value.as_big() != uint64_t{1} << 63) fail_overflow();
  return value.is_integer() ? combine_integers(BinaryOp::kSub, 0, value.as_int())
                            : Value::integer(INT64_MIN);
}

}  // namespace nanovllm::jinja
