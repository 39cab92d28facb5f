// Truth, equality, order, hashing and membership.
#include <cmath>
#include <functional>

#include "text/jinja/function.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {
namespace {

// Wide enough to hold every 64-bit integer and every double exactly (x86-64; elsewhere nearly).
long double wide(const Value& number) {
  if (number.is(Kind::kFloat)) return number.as_float();
  if (number.is(Kind::kBigInt)) return static_cast<long double>(number.as_big());
  return static_cast<long double>(number.as_int());
}

bool equal_items(Budget& budget, const Value& a, const Value& b) {
  return a.is_same(b) || equal(budget, a, b);
}

bool equal_sequences(Budget& budget, const Values& a, const Values& b) {
  if (a.size() != b.size()) return false;
  const Nesting nesting(budget);
  for (size_t i = 0; i < a.size(); ++i) {
    budget.step();
    if (!equal_items(budget, a[i], b[i])) return false;
  }
  return true;
}

bool equal_dicts(Budget& budget, const Dict& a, const Dict& b) {
  if (a.size() != b.size()) return false;
  const Nesting nesting(budget);
  for (const Dict::Entry& entry : a.entries()) {
    budget.step();
    const Value* other = b.find(entry.key);
    if (other == nullptr || !equal_items(budget, entry.value, *other)) return false;
  }
  return true;
}

bool equal_views(Budget& budget, const View& a, const View& b) {
  if (a.which != b.which || a.which == ViewKind::kValues) return &a == &b;
  const Dict& left = a.dict.as<Dict>();
  const Dict& right = b.dict.as<Dict>();
  if (a.which == ViewKind::kItems) return equal_dicts(budget, left, right);
  if (left.size() != right.size()) return false;
  for (const Dict::Entry& entry : left.entries()) {
    budget.step();
    if (right.find(entry.key) == nullptr) return false;
  }
  return true;
}

bool equal_ranges(const Range& a, const Range& b) {
  if (a.length != b.length) return false;
  if (a.length == 0) return true;
  return a.start == b.start && (a.length == 1 || a.step == b.step);
}

template <typename T>
bool ordered(CompareOp op, const T& a, const T& b) {
  switch (op) {
    case CompareOp::kLt:
      return a < b;
    case CompareOp::kLe:
      return a <= b;
    case CompareOp::kGt:
      return a > b;
    default:
      return a >= b;
  }
}

bool compare_sequences(Budget& budget, CompareOp op, const Values& a, const Values& b) {
  const Nesting nesting(budget);
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    budget.step();
    if (!equal_items(budget, a[i], b[i])) return compare(budget, op, a[i], b[i]);
  }
  return ordered(op, a.size(), b.size());
}

bool view_contains(Budget& budget, const View& view, const Value& item) {
  const Dict& dict = view.dict.as<Dict>();
  if (view.which == ViewKind::kKeys) return dict.find(item) != nullptr;
  if (view.which == ViewKind::kItems) {
    if (!item.is(Kind::kTuple) || items_of(item).size() != 2) return false;
    const Value* value = dict.find(items_of(item)[0]);
    return value != nullptr && equal_items(budget, *value, items_of(item)[1]);
  }
  for (const Dict::Entry& entry : dict.entries()) {
    budget.step();
    if (equal_items(budget, entry.value, item)) return true;
  }
  return false;
}

bool range_contains(const Range& range, const Value& item) {
  if (!item.is_number() || range.length == 0) return false;
  const long double value = wide(item);
  if (value != std::floor(value)) return false;
  const long double index = (value - static_cast<long double>(range.start)) / range.step;
  return index >= 0 && index < static_cast<long double>(range.length) && index == std::floor(index);
}

}  // namespace

bool is_truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kNone:
    case Kind::kMissing:
    case Kind::kUndefined:
      return false;
    case Kind::kBool:
      return value.as_bool();
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_float() != 0;
    default:
      return !has_length(value) || length_of(value) != 0;
  }
}

bool has_length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kView:
    case Kind::kRange:
      return true;
    default:
      return false;
  }
}

int64_t length_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return static_cast<int64_t>(value.as<String>().length());
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(items_of(value).size());
    case Kind::kDict:
      return static_cast<int64_t>(value.as<Dict>().size());
    case Kind::kView:
      return static_cast<int64_t>(value.as<View>().dict.as<Dict>().size());
    case Kind::kRange:
      return value.as<Range>().length;
    default:
      fail(Fault::kType, "object of type '{}' has no length", type_name(value));
  }
}

bool equal(Budget& budget, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.as_int() == b.as_int();
    return wide(a) == wide(b);
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
      return true;
    case Kind::kString:
      return text_of(a) == text_of(b);
    case Kind::kList:
    case Kind::kTuple:
      return equal_sequences(budget, items_of(a), items_of(b));
    case Kind::kDict:
      return equal_dicts(budget, a.as<Dict>(), b.as<Dict>());
    case Kind::kView:
      return equal_views(budget, a.as<View>(), b.as<View>());
    case Kind::kRange:
      return equal_ranges(a.as<Range>(), b.as<Range>());
    case Kind::kMethod:
      return &a.as<Method>().builtin == &b.as<Method>().builtin &&
             a.as<Method>().self.is_same(b.as<Method>().self);
    default:
      return a.is_same(b);
  }
}

bool compare(Budget& budget, CompareOp op, const Value& a, const Value& b) {
  if (op == CompareOp::kEq) return equal(budget, a, b);
  if (op == CompareOp::kNe) return !equal(budget, a, b);
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return ordered(op, a.as_int(), b.as_int());
    return ordered(op, wide(a), wide(b));
  }
  // The order of UTF-8 is the order of the code points.
  if (a.is_string() && b.is_string()) return ordered(op, text_of(a), text_of(b));
  if (a.is_sequence() && a.kind() == b.kind()) {
    return compare_sequences(budget, op, items_of(a), items_of(b));
  }
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  static constexpr const char* kNames[] = {"==", "!=", "<", "<=", ">", ">="};
  fail(Fault::kType, "'{}' not supported between '{}' and '{}'", kNames[static_cast<int>(op)],
       type_name(a), type_name(b));
}

size_t hash_value(Budget& budget, const Value& value) {
  const auto hash_integer = [](int64_t number) { return std::hash<int64_t>{}(number); };
  switch (value.kind()) {
    case Kind::kBool:
    case Kind::kInt:
      return hash_integer(value.as_int());
    case Kind::kBigInt:
      return std::hash<double>{}(static_cast<double>(value.as_big()));
    case Kind::kFloat: {
      // Numbers that are equal must hash alike: 1 == 1.0 == True.
      const double number = value.as_float();
      if (number >= -9.2e18 && number <= 9.2e18 && std::floor(number) == number) {
        return hash_integer(static_cast<int64_t>(number));
      }
      return std::hash<double>{}(number);
    }
    case Kind::kString:
      return std::hash<std::string_view>{}(text_of(value));
    case Kind::kTuple: {
      const Nesting nesting(budget);
      size_t hash = 0x9E3779B97F4A7C15ULL;
      for (const Value& item : items_of(value)) {
        budget.step();
        hash = (hash ^ hash_value(budget, item)) * 0x100000001B3ULL;
      }
      return hash;
    }
    case Kind::kRange:
      return hash_integer(value.as<Range>().length);
    case Kind::kUndefined:
    case Kind::kNone:
    case Kind::kMissing:
      return static_cast<size_t>(value.kind());
    case Kind::kFunction:
      return std::hash<const void*>{}(&value.as_function());
    case Kind::kMethod:
      return std::hash<const void*>{}(&value.as<Method>().builtin);
    case Kind::kList:
    case Kind::kDict:
    case Kind::kView:
      fail(Fault::kType, "unhashable type: '{}'", type_name(value));
    default:
      return std::hash<const void*>{}(value.as_object());
  }
}

bool contains(Interpreter& in, const Value& container, const Value& item) {
  Budget& budget = in.budget();
  switch (container.kind()) {
    case Kind::kString:
      if (!item.is_string()) {
        fail(Fault::kType, "'in <string>' requires a string on its left, not '{}'",
             type_name(item));
      }
      budget.work(text_of(container).size());
      return text_of(container).find(text_of(item)) != std::string::npos;
    case Kind::kDict:
      return container.as<Dict>().find(item) != nullptr;
    case Kind::kView:
      return view_contains(budget, container.as<View>(), item);
    case Kind::kRange:
      return range_contains(container.as<Range>(), item);
    default:
      break;
  }
  bool found = false;
  in.for_each(container, [&](const Value& element) {
    budget.step();
    found = equal_items(budget, element, item);
    return !found;
  });
  return found;
}

}  // namespace nanovllm::jinja
