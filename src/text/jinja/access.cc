// The interpreter's attributes, items and slices, with the sandbox's rules: an attribute goes
// before an item for object.name, an item before an attribute for object[name], and nothing that
// would modify a list or dict can be reached.
#include <algorithm>
#include <array>
#include <limits>

#include "text/jinja/builtins.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/unicode.h"

namespace nanovllm::jinja {
namespace {

bool is_unsafe(const Value& object, std::string_view name) {
  static constexpr std::array<std::string_view, 8> kList = {"append", "clear",  "extend",  "insert",
                                                            "pop",    "remove", "reverse", "sort"};
  static constexpr std::array<std::string_view, 5> kDict = {"clear", "pop", "popitem", "setdefault",
                                                            "update"};
  if (object.is(Kind::kList)) return std::find(kList.begin(), kList.end(), name) != kList.end();
  if (object.is(Kind::kDict)) return std::find(kDict.begin(), kDict.end(), name) != kDict.end();
  return false;
}

Value macro_attribute(Budget& budget, const Macro& macro, std::string_view name) {
  if (name == "name") {
    return macro.name.empty() ? Value::none() : make_string(budget, macro.name);
  }
  if (name == "caller") return Value::boolean(macro.body.uses_caller);
  if (name == "catch_kwargs") return Value::boolean(macro.body.uses_kwargs);
  if (name == "catch_varargs") return Value::boolean(macro.body.uses_varargs);
  if (name == "arguments") {
    Values names;
    for (const auto& parameter : macro.body.parameters) {
      names.push_back(make_string(budget, parameter->name));
    }
    return make_tuple(budget, std::move(names));
  }
  return {};
}

Value number_attribute(const Value& number, std::string_view name) {
  if (name == "real") return number.is(Kind::kBool) ? Value::integer(number.as_int()) : number;
  if (name == "imag") return number.is(Kind::kFloat) ? Value::number(0) : Value::integer(0);
  if (number.is(Kind::kFloat)) return {};
  if (name == "numerator") return Value::integer(number.as_int());
  if (name == "denominator") return Value::integer(1);
  return {};
}

// What slice.indices() gives. The step is capped, for there is no difference beyond the length.
struct SliceRange {
  int64_t start, step, count;
  int64_t stop, exact_step;
};

SliceRange slice_range(const Value& start, const Value& stop, const Value& step, int64_t length) {
  const auto index = [](const Value& value, int64_t otherwise) {
    if (value.is_missing() || value.is_none()) return otherwise;
    if (!value.is_integer()) {
      fail(Fault::kType, "slice indices must be integers or None, not '{}'", type_name(value));
    }
    return value.as_int();
  };
  const int64_t by = index(step, 1);
  if (by == 0) fail(Fault::kValue, "slice step cannot be zero");
  const int64_t lowest = by > 0 ? 0 : -1;
  const int64_t highest = by > 0 ? length : length - 1;
  const auto clamp = [&](int64_t value) {
    if (value < 0) value += length;
    return std::clamp(value, lowest, highest);
  };
  const bool has_start = !start.is_missing() && !start.is_none();
  const bool has_stop = !stop.is_missing() && !stop.is_none();
  const int64_t from = has_start ? clamp(index(start, 0)) : (by > 0 ? lowest : highest);
  const int64_t to = has_stop ? clamp(index(stop, 0)) : (by > 0 ? highest : lowest);
  // A step beyond the length reaches one item; capping it keeps the sums below from overflowing.
  const int64_t stride = by > 0 ? std::min(by, length + 1) : by < -length ? length + 1 : -by;
  SliceRange range{from, by > 0 ? stride : -stride, 0, to, by};
  if (by > 0 && from < to) range.count = (to - from - 1) / stride + 1;
  if (by < 0 && from > to) range.count = (from - to - 1) / stride + 1;
  return range;
}

// A slice of a range, bounds and all as Python has them but for what no int64 holds: such bounds
// are cut off, and a step that reaches no second item shows as the largest.
Value slice_range_object(Budget& budget, const Range& whole, const SliceRange& slice) {
  __extension__ using Wide = __int128;
  const auto cut_off = [](Wide x) {
    constexpr Wide kLeast = std::numeric_limits<int64_t>::min();
    constexpr Wide kMost = std::numeric_limits<int64_t>::max();
    return static_cast<int64_t>(std::clamp(x, kLeast, kMost));
  };
  const int64_t from = cut_off(whole.start + Wide{slice.start} * whole.step);
  const Wide step = Wide{whole.step} * slice.exact_step;
  if (step == cut_off(step)) {
    const int64_t stop = cut_off(whole.start + Wide{slice.stop} * whole.step);
    return make<Range>(Kind::kRange, budget, from, stop, cut_off(step));
  }
  const int64_t stop = step > 0 ? from + slice.count : from - slice.count;
  return make<Range>(Kind::kRange, budget, from, stop, cut_off(step));
}

Value slice_string(Budget& budget, const Value& value, const SliceRange& range) {
  const std::string& text = text_of(value);
  budget.work(text.size());
  std::string out;
  if (range.count > 0) {
    const auto start = static_cast<size_t>(range.start);
    const auto count = static_cast<size_t>(range.count);
    if (range.step == 1) {
      const bool ascii = value.as<String>().is_ascii();
      const size_t from = ascii ? start : code_point_offset(text, start);
      const std::string_view rest = std::string_view(text).substr(from);
      out = rest.substr(0, ascii ? count : code_point_offset(rest, count));
    } else {
      std::u32string characters;
      for (size_t pos = 0; pos < text.size();) characters += decode(text, pos);
      for (int64_t i = 0, at = range.start; i < range.count; ++i, at += range.step) {
        append_utf8(out, characters[static_cast<size_t>(at)]);
      }
    }
  }
  return make_string(budget, std::move(out), is_markup(value));
}

Value slice_items(Budget& budget, const Value& value, const SliceRange& range) {
  const Values& items = items_of(value);
  budget.work(static_cast<size_t>(range.count) * sizeof(Value));
  budget.expect(static_cast<size_t>(range.count) * sizeof(Value));
  Values out;
  out.reserve(static_cast<size_t>(range.count));
  for (int64_t i = 0, at = range.start; i < range.count; ++i, at += range.step) {
    out.push_back(items[static_cast<size_t>(at)]);
  }
  return make<List>(value.kind(), budget, std::move(out));
}

// Item `index` of a string, list, tuple or range; missing when it is out of range.
Value item_at(Budget& budget, const Value& object, int64_t index) {
  const int64_t length = length_of(object);
  if (index < 0) index += length;
  if (index < 0 || index >= length) return {};
  const auto at = static_cast<size_t>(index);
  switch (object.kind()) {
    case Kind::kString: {
      const std::string& text = text_of(object);
      size_t begin = at;
      if (!object.as<String>().is_ascii()) {
        budget.work(text.size());
        begin = code_point_offset(text, at);
      }
      size_t end = begin;
      decode(text, end);
      return make_string(budget, text.substr(begin, end - begin), is_markup(object));
    }
    case Kind::kRange:
      return Value::integer(object.as<Range>().at(index));
    default:
      return items_of(object)[at];
  }
}

}  // namespace

Value Interpreter::make_undefined_item(const Value& owner, const Value& name) {
  Value value = make<Undefined>(Kind::kUndefined, budget_, Fault::kUndefined);
  value.as<Undefined>().owner = describe_type(owner);
  value.as<Undefined>().set_name(name);
  return value;
}

// Methods and attributes proper, without items; missing when there is none.
Value Interpreter::find_attribute(const Value& object, const Value& name_value) {
  const std::string& name = text_of(name_value);
  if (const Builtin* method = find_method(object, name)) {
    return make<Method>(Kind::kMethod, budget_, object, *method);
  }
  const bool is_internal = name.starts_with("__") && name.ends_with("__") && name.size() > 4;
  if (is_internal || is_unsafe(object, name)) {
    Value value = make<Undefined>(Kind::kUndefined, budget_, Fault::kSecurity);
    value.as<Undefined>().hint =
        fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(object));
    return value;
  }
  switch (object.kind()) {
    case Kind::kNamespace: {
      const Value* value = object.as<Namespace>().attributes.as<Dict>().find(name);
      return value == nullptr ? Value() : *value;
    }
    case Kind::kLoop:
      return loop_attribute(*this, object, name);
    case Kind::kMacro:
      return macro_attribute(budget_, object.as<Macro>(), name);
    case Kind::kCycler:
      if (name == "current") {
        const auto& cycler = object.as<Cycler>();
        return items_of(cycler.items)[cycler.position];
      }
      return {};
    case Kind::kTuple:
      if (!object.as<List>().is_group) return {};
      if (name == "grouper") return items_of(object)[0];
      if (name == "list") return items_of(object)[1];
      return {};
    case Kind::kRange:
      if (name == "start") return Value::integer(object.as<Range>().start);
      if (name == "stop") return Value::integer(object.as<Range>().stop);
      if (name == "step") return Value::integer(object.as<Range>().step);
      return {};
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return number_attribute(object, name);
    default:
      return {};
  }
}

Value Interpreter::get_attribute(const Value& object, const Value& name) {
  if (object.is(Kind::kDict) && find_method(object, text_of(name)) == nullptr) {
    // The common case, an unsafe name being one too long to look for first.
    const Value* value = object.as<Dict>().find(text_of(name));
    if (value != nullptr && !is_unsafe(object, text_of(name))) return *value;
  }
  if (object.is_undefined()) fail_undefined(object);
  Value value = find_attribute(object, name);
  if (!value.is_missing()) return value;
  if (object.is(Kind::kSelf)) value = block_reference(name);
  if (!value.is_missing()) return value;
  return make_undefined_item(object, name);
}

Value Interpreter::get_item(const Value& object, const Value& key) {
  Value value;
  switch (object.kind()) {
    case Kind::kUndefined:
      fail_undefined(object);
    case Kind::kDict:
      // A key that can't be hashed is a TypeError, which Jinja takes for "no such item".
      if (key.is(Kind::kList) || key.is(Kind::kDict) || key.is(Kind::kView)) break;
      if (const Value* found = object.as<Dict>().find(key)) return *found;
      break;
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
      if (key.is_integer()) value = item_at(budget_, object, key.as_int());
      break;
    case Kind::kSelf:
      if (key.is_string()) value = block_reference(key);
      break;
    default:
      break;
  }
  if (value.is_missing() && key.is_string()) value = find_attribute(object, key);
  if (!value.is_missing()) return value;
  return make_undefined_item(object, key);
}

Value Interpreter::evaluate_slice(const Value& object, const Slice& slice) {
  const auto bound = [&](const ExprPtr& expr) { return expr ? evaluate(*expr) : Value(); };
  const Value start = bound(slice.start);
  const Value stop = bound(slice.stop);
  const Value step = bound(slice.step);
  offset_ = slice.offset;
  if (object.is_undefined()) fail_undefined(object);
  if (!object.is_string() && !object.is_sequence() && !object.is(Kind::kRange)) {
    fail(Fault::kType, "'{}' object can't be sliced", type_name(object));
  }
  const SliceRange range = slice_range(start, stop, step, length_of(object));
  if (object.is_string()) return slice_string(budget_, object, range);
  if (object.is_sequence()) return slice_items(budget_, object, range);
  const auto& whole = object.as<Range>();
  return slice_range_object(budget_, whole, range);
}

}  // namespace nanovllm::jinja
