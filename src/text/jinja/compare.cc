// Truth, equality, order, hashing and membership.
#include <cmath>
#include <functional>

#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"

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

template <typename T>
bool ordered(CompareOp op, const T& a, const T& b) {
  return op == CompareOp::kLt   ? a < b
         : op == CompareOp::kLe ? a <= b
         : op == CompareOp::kGt ? a > b
                                : a >= b;
}

}  // namespace

bool is_truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kNone:
    case Kind::kMissing:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_float() != 0;
    case Kind::kString:
      return !text_of(value).empty();
    default:
      return length_of(value) != 0;
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
    case Kind::kView:
      return static_cast<int64_t>(items_of(value).size());
    case Kind::kDict:
      return static_cast<int64_t>(value.as<Dict>().size());
    default:
      return -1;
  }
}

bool equal(Budget& budget, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_integer() && b.is_integer() ? a.as_int() == b.as_int() : wide(a) == wide(b);
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
      return true;
    case Kind::kString:
      return text_of(a) == text_of(b);
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
      return equal_sequences(budget, items_of(a), items_of(b));
    case Kind::kDict:
      return equal_dicts(budget, a, b);
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
    const Nesting nesting(budget);
    const Values& left = items_of(a);
    const Values& right = items_of(b);
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      budget.step();
      if (left[i].is_same(right[i]) || equal(budget, left[i], right[i])) continue;
      return compare(budget, op, left[i], right[i]);
    }
    return ordered(op, left.size(), right.size());
  }
  if (a.is_undefined()) fail_undefined(a);
  if (b.is_undefined()) fail_undefined(b);
  static constexpr const char* kNames[] = {"==", "!=", "<", "<=", ">", ">="};
  fail(Fault::kType, "'{}' not supported between '{}' and '{}'", kNames[static_cast<int>(op)],
       type_name(a), type_name(b));
}

size_t hash_value(Budget& budget, const Value& value) {
  switch (value.kind()) {
    case Kind::kString:
      return value.as<String>().hash();
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kBigInt:
    case Kind::kFloat:
      // Numbers that are equal must hash alike: 1 == 1.0 == True.
      return std::hash<double>{}(float_of(value));
    case Kind::kTuple: {
      const Nesting nesting(budget);
      size_t hash = 0x9E3779B97F4A7C15ULL;
      for (const Value& item : items_of(value)) {
        budget.step();
        hash = (hash ^ hash_value(budget, item)) * 0x100000001B3ULL;
      }
      return hash;
    }
    case Kind::kList:
    case Kind::kDict:
    case Kind::kView:
      fail(Fault::kType, "unhashable type: '{}'", type_name(value));
    case Kind::kNone:
    case Kind::kUndefined:
      return static_cast<size_t>(value.kind());
    default:
      return std::hash<int64_t>{}(value.as_int());
  }
}

bool contains(Interpreter& in, const Value& container, const Value& item) {
  if (container.is(Kind::kDict)) return container.as<Dict>().find(item) != nullptr;
  if (container.is_string()) {
    if (!item.is_string()) {
      fail(Fault::kType, "'in <string>' requires a string on its left, not '{}'", type_name(item));
    }
    in.budget().work(text_of(container).size());
    return text_of(container).find(text_of(item)) != std::string::npos;
  }
  const Value list = in.to_list(container);
  for (const Value& element : items_of(list)) {
    in.budget().step();
    if (element.is_same(item) || equal(in.budget(), element, item)) return true;
  }
  return false;
}

}  // namespace nanovllm::jinja
