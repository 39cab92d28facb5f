// The tests of `is`.
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/strings.h"

namespace nanovllm::jinja {
namespace {

template <bool (*Holds)(const Value&)>
Value simple(const Call& call) {
  return Value::boolean(Holds(call.self));
}

template <Kind kKind>
Value of_kind(const Call& call) {
  return Value::boolean(call.self.is(kKind));
}

template <CompareOp kOp>
Value comparison(const Call& call) {
  return Value::boolean(compare(call.budget, kOp, call.self, call[0]));
}

template <text::CaseMapping kMapping>
Value of_case(const Call& call) {
  const std::string text = to_str(call.budget, call.self);
  return Value::boolean(is_all(text, kMapping));
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_true(const Value& value) { return value.is(Kind::kBool) && value.as_bool(); }
bool is_false(const Value& value) { return value.is(Kind::kBool) && !value.as_bool(); }
bool is_whole(const Value& value) { return value.is(Kind::kInt) || value.is(Kind::kBigInt); }
bool is_numeric(const Value& value) { return value.is_number(); }
bool has_length(const Value& value) { return length_of(value) >= 0 && !value.is(Kind::kView); }
bool has_items(const Value& value) { return length_of(value) >= 0 || value.is(Kind::kIterator); }
bool can_be_called(const Value& value) {
  return value.is_undefined() || value.is(Kind::kFunction) || value.is(Kind::kMacro) ||
         value.is(Kind::kMethod);
}

Value remainder_is(const Call& call, const Value& divisor, int64_t wanted) {
  const Value rest = apply_binary(call.budget, BinaryOp::kMod, call.self, divisor);
  return Value::boolean(equal(call.budget, rest, Value::integer(wanted)));
}

Value odd(const Call& call) { return remainder_is(call, Value::integer(int64_t{2}), 1); }
Value even(const Call& call) { return remainder_is(call, Value::integer(int64_t{2}), 0); }
Value divisibleby(const Call& call) { return remainder_is(call, call[0], 0); }
Value sameas(const Call& call) { return Value::boolean(call.self.is_same(call[0])); }
Value in(const Call& call) { return Value::boolean(contains(call.in, call[0], call.self)); }

// clang-format off
constexpr Builtin kPredicates[] = {
    {"!=", "/ b", comparison<CompareOp::kNe>}, {"<", "/ b", comparison<CompareOp::kLt>},
    {"<=", "/ b", comparison<CompareOp::kLe>}, {"==", "/ b", comparison<CompareOp::kEq>},
    {">", "/ b", comparison<CompareOp::kGt>}, {">=", "/ b", comparison<CompareOp::kGe>},
    {"boolean", "", of_kind<Kind::kBool>}, {"callable", "", simple<can_be_called>},
    {"defined", "", simple<is_defined>}, {"divisibleby", "num", divisibleby},
    {"eq", "/ b", comparison<CompareOp::kEq>}, {"equalto", "/ b", comparison<CompareOp::kEq>},
    {"even", "", even}, {"false", "", simple<is_false>}, {"float", "", of_kind<Kind::kFloat>},
    {"ge", "/ b", comparison<CompareOp::kGe>}, {"greaterthan", "/ b", comparison<CompareOp::kGt>},
    {"gt", "/ b", comparison<CompareOp::kGt>}, {"in", "seq", in}, {"integer", "", simple<is_whole>},
    {"iterable", "", simple<has_items>}, {"le", "/ b", comparison<CompareOp::kLe>},
    {"lessthan", "/ b", comparison<CompareOp::kLt>},
    {"lower", "", of_case<text::CaseMapping::kLower>}, {"lt", "/ b", comparison<CompareOp::kLt>},
    {"mapping", "", of_kind<Kind::kDict>}, {"ne", "/ b", comparison<CompareOp::kNe>},
    {"none", "", of_kind<Kind::kNone>}, {"number", "", simple<is_numeric>}, {"odd", "", odd},
    {"sameas", "other", sameas}, {"sequence", "", simple<has_length>},
    {"string", "", of_kind<Kind::kString>}, {"true", "", simple<is_true>},
    {"undefined", "", of_kind<Kind::kUndefined>}, {"upper", "", of_case<text::CaseMapping::kUpper>},
};
// clang-format on

}  // namespace

const Builtin* find_test(std::string_view name) { return find_builtin(kPredicates, name); }

}  // namespace nanovllm::jinja
