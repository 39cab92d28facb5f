// The tests of `is`.
#include "text/jinja/tests.h"

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/iterators.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {
namespace {

// A test without arguments that can't fail.
template <bool (*Holds)(const Value&)>
Value simple(Interpreter&, const Value& value, Arguments& arguments) {
  bind_none(arguments, "test");
  return Value::boolean(Holds(value));
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.is(Kind::kBool); }
bool is_true(const Value& value) { return value.is(Kind::kBool) && value.as_bool(); }
bool is_false(const Value& value) { return value.is(Kind::kBool) && !value.as_bool(); }
bool is_integer(const Value& value) { return value.is(Kind::kInt) || value.is(Kind::kBigInt); }
bool is_float(const Value& value) { return value.is(Kind::kFloat); }
bool is_number(const Value& value) { return value.is_number(); }
bool is_string(const Value& value) { return value.is_string(); }
bool is_mapping(const Value& value) { return value.is(Kind::kDict); }
bool is_sequence(const Value& value) { return has_length(value) && !value.is(Kind::kView); }
bool is_callable(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:  // it can be called, and then fails
    case Kind::kFunction:
    case Kind::kMacro:
    case Kind::kMethod:
    case Kind::kLoop:
    case Kind::kJoiner:
    case Kind::kBlock:
      return true;
    default:
      return false;
  }
}

Value remainder_is(Interpreter& in, const Value& value, const Value& divisor, int64_t wanted) {
  const Value rest = apply_binary(in, BinaryOp::kMod, value, divisor);
  return Value::boolean(equal(in.budget(), rest, Value::integer(wanted)));
}

Value odd(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "odd");
  return remainder_is(in, value, Value::integer(2), 1);
}

Value even(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "even");
  return remainder_is(in, value, Value::integer(2), 0);
}

Value divisibleby(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [divisor] = bind<1>(arguments, "divisibleby", {"num"});
  return remainder_is(in, value, *divisor, 0);
}

Value lower(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "lower");
  return Value::boolean(is_lower_text(to_str(in.budget(), value)));
}

Value upper(Interpreter& in, const Value& value, Arguments& arguments) {
  bind_none(arguments, "upper");
  return Value::boolean(is_upper_text(to_str(in.budget(), value)));
}

Value sameas(Interpreter&, const Value& value, Arguments& arguments) {
  const auto [other] = bind<1>(arguments, "sameas", {"other"});
  return Value::boolean(value.is_same(*other));
}

Value filter_exists(Interpreter&, const Value& value, Arguments& arguments) {
  bind_none(arguments, "filter");
  return Value::boolean(value.is_string() && find_filter(text_of(value)) != nullptr);
}

Value test_exists(Interpreter&, const Value& value, Arguments& arguments) {
  bind_none(arguments, "test");
  return Value::boolean(value.is_string() && find_test(text_of(value)) != nullptr);
}

Value is_in(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [container] = bind<1>(arguments, "in", {"seq"});
  return Value::boolean(contains(in, *container, value));
}

template <CompareOp kOp>
Value comparison(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [other] = bind<1>(arguments, "comparison", {"b", "/"});
  return Value::boolean(compare(in.budget(), kOp, value, *other));
}

constexpr Builtin kTests[] = {
    {"!=", comparison<CompareOp::kNe>},
    {"<", comparison<CompareOp::kLt>},
    {"<=", comparison<CompareOp::kLe>},
    {"==", comparison<CompareOp::kEq>},
    {">", comparison<CompareOp::kGt>},
    {">=", comparison<CompareOp::kGe>},
    {"boolean", simple<is_boolean>},
    {"callable", simple<is_callable>},
    {"defined", simple<is_defined>},
    {"divisibleby", divisibleby},
    {"eq", comparison<CompareOp::kEq>},
    {"equalto", comparison<CompareOp::kEq>},
    {"escaped", simple<is_markup>},
    {"even", even},
    {"false", simple<is_false>},
    {"filter", filter_exists},
    {"float", simple<is_float>},
    {"ge", comparison<CompareOp::kGe>},
    {"greaterthan", comparison<CompareOp::kGt>},
    {"gt", comparison<CompareOp::kGt>},
    {"in", is_in},
    {"integer", simple<is_integer>},
    {"iterable", simple<is_iterable>},
    {"le", comparison<CompareOp::kLe>},
    {"lessthan", comparison<CompareOp::kLt>},
    {"lower", lower},
    {"lt", comparison<CompareOp::kLt>},
    {"mapping", simple<is_mapping>},
    {"ne", comparison<CompareOp::kNe>},
    {"none", simple<is_none>},
    {"number", simple<is_number>},
    {"odd", odd},
    {"sameas", sameas},
    {"sequence", simple<is_sequence>},
    {"string", simple<is_string>},
    {"test", test_exists},
    {"true", simple<is_true>},
    {"undefined", simple<is_undefined>},
    {"upper", upper},
};

}  // namespace

BuiltinTable tests() { return kTests; }

}  // namespace nanovllm::jinja
