// The interpreter's attributes, items and slices, with the sandbox's rules: an attribute goes
// before an item for object.name, an item before an attribute for object[name], and nothing that
// would modify a list or dict can be reached.
#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/strings.h"

namespace nanovllm::jinja {
namespace {

// A list has no such attribute at all.
bool is_unsafe(const Value& object, std::string_view name) {
  static constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  return (object.is(Kind::kDict) &&
          std::find(std::begin(kDict), std::end(kDict), name) != std::end(kDict)) ||
         (name.size() > 4 && name.starts_with("__") && name.ends_with("__"));
}

}  // namespace

Value Interpreter::undefined_item(const Value& owner, const Value& name) {
  return make<Undefined>(Kind::kUndefined, budget_, type_name(owner), name);
}

// Methods and attributes proper, without items; missing when there is none.
Value Interpreter::find_attribute(const Value& object, const Value& name_value) {
  const std::string& name = text_of(name_value);
  if (const Builtin* method = find_method(object, name)) {
    return make<Method>(Kind::kMethod, budget_, object, *method);
  }
  if (is_unsafe(object, name)) {
    return make_undefined(budget_, fmt::format("access to attribute '{}' of '{}' object is unsafe.",
                                               name, type_name(object)));
  }
  if (object.is(Kind::kLoop)) return loop_attribute(object.as<Loop>(), name);
  if (!object.is(Kind::kNamespace)) return {};
  const Value* value = object.as<Namespace>().attributes.as<Dict>().find(name_value);
  return value == nullptr ? Value() : *value;
}

Value Interpreter::get_attribute(const Value& object, const Value& name) {
  if (object.is_undefined()) fail_undefined(object);
  Value value = find_attribute(object, name);
  if (!value.is_missing()) return value;
  if (object.is(Kind::kDict)) {
    if (const Value* item = object.as<Dict>().find(name)) return *item;
  }
  return undefined_item(object, name);
}

Value Interpreter::get_item(const Value& object, const Value& key) {
  if (object.is_undefined()) fail_undefined(object);
  // A key that can't be hashed is a TypeError, which Jinja takes for "no such item".
  const bool is_hashable = !key.is(Kind::kList) && !key.is(Kind::kDict) && !key.is(Kind::kView);
  if (object.is(Kind::kDict) && is_hashable) {
    if (const Value* found = object.as<Dict>().find(key)) return *found;
  } else if ((object.is_string() || object.is_sequence()) && key.is_integer()) {
    const int64_t length = length_of(object);
    const int64_t index = key.as_int() + (key.as_int() < 0 ? length : 0);
    if (index >= 0 && index < length) {
      if (!object.is_string()) return items_of(object)[static_cast<size_t>(index)];
      return take_items(object, index, 1, 1);
    }
  }
  Value value = key.is_string() ? find_attribute(object, key) : Value();
  return value.is_missing() ? undefined_item(object, key) : value;
}

Value Interpreter::to_list(const Value& value) {
  if (value.is_sequence() || value.is(Kind::kView)) return value;
  Values items;
  if (value.is(Kind::kIterator)) {
    auto& iterator = value.as<Iterator>();
    const Values& all = items_of(iterator.items);
    const size_t next = std::exchange(iterator.next, all.size());
    if (next == 0) return iterator.items;
    items.assign(all.begin() + static_cast<std::ptrdiff_t>(next), all.end());
  } else if (value.is_string()) {
    for (size_t begin = 0, end = 0; begin < text_of(value).size(); begin = end) {
      text::next_character(text_of(value), end);
      budget_.step();
      // Plain, of a Markup too: Python iterates over the str that it is.
      items.push_back(make_string(budget_, text_of(value).substr(begin, end - begin)));
    }
  } else if (value.is(Kind::kDict)) {
    for (const Dict::Entry& entry : entries_of(value)) items.push_back(entry.key);
    budget_.work(items.size() * sizeof(Value));
  } else if (!value.is_undefined()) {
    fail("'{}' object is not iterable", type_name(value));
  }
  return make_list(budget_, std::move(items));
}

// `count` items of object from `start` on, `step` apart.
Value Interpreter::take_items(const Value& object, int64_t start, int64_t step, int64_t count) {
  budget_.work(static_cast<size_t>(count) * sizeof(Value));
  budget_.expect(static_cast<size_t>(count) * sizeof(Value));
  if (object.is_string() && step == 1) {
    const auto offset = [is_ascii = object.as<String>().is_ascii()](std::string_view text,
                                                                    int64_t index) {
      const auto at = static_cast<size_t>(index);
      return is_ascii ? at : code_point_offset(text, at);
    };
    const std::string_view text = text_of(object);
    budget_.work(text.size());
    const std::string_view rest = text.substr(offset(text, start));
    return make_string(budget_, rest.substr(0, offset(rest, count)), is_markup(object));
  }
  const Value list = to_list(object);
  Values items;
  items.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    items.push_back(items_of(list)[static_cast<size_t>(start + i * step)]);
  }
  return object.is_string() ? join_characters(budget_, items, is_markup(object))
                            : make_like(budget_, object, std::move(items));
}

// As slice.indices() has it.
Value Interpreter::evaluate_slice(const Expr& expr) {
  const Values parts = evaluate_all(expr);
  const Value& object = parts[0];
  if (object.is_undefined()) fail_undefined(object);
  if (!object.is_string() && !object.is_sequence()) {
    fail("'{}' object can't be sliced", type_name(object));
  }
  const auto is_given = [&](size_t i) {
    if (parts[i].is_missing() || parts[i].is_none()) return false;
    if (parts[i].is_integer()) return true;
    fail("slice indices must be integers or None, not '{}'", type_name(parts[i]));
  };
  const int64_t length = length_of(object);
  // A step beyond the length reaches one item; capping it keeps the sums below from overflowing.
  const int64_t step = is_given(3) ? std::clamp(parts[3].as_int(), -length - 1, length + 1) : 1;
  if (step == 0) fail("slice step cannot be zero");
  const int64_t lowest = step > 0 ? 0 : -1;
  const int64_t highest = step > 0 ? length : length - 1;
  const auto bound = [&](size_t i, int64_t otherwise) {
    if (!is_given(i)) return otherwise;
    const int64_t index = parts[i].as_int();
    return std::clamp(index < 0 ? index + length : index, lowest, highest);
  };
  const int64_t start = bound(1, step > 0 ? lowest : highest);
  const int64_t stop = bound(2, step > 0 ? highest : lowest);
  int64_t count = 0;
  if (step > 0 && start < stop) count = (stop - start - 1) / step + 1;
  if (step < 0 && start > stop) count = (start - stop - 1) / -step + 1;
  return take_items(object, start, step, count);
}

}  // namespace nanovllm::jinja
