// The filters of lists and other things with items.
#include <algorithm>
#include <numeric>

#include "text/jinja/filters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/strings.h"
#include "text/unicode_case.h"

namespace nanovllm::jinja {

Values attribute_path(Budget& budget, const Value& attribute) {
  if (attribute.is_missing() || attribute.is_none()) return {};
  if (!attribute.is_string()) return {attribute};
  Values path;
  for (const std::string_view part : split(budget, text_of(attribute), ".", -1)) {
    int64_t index = 0;
    double number = 0;
    const bool is_index = part.find_first_not_of("0123456789") == std::string_view::npos &&
                          parse_number(part, index, number);
    path.push_back(is_index ? Value::integer(index) : make_string(budget, std::string(part)));
  }
  return path;
}

Value attribute_of(const Call& call, Value item, const Values& path) {
  for (const Value& name : path) {
    call.budget.step();
    item = call.in.get_item(item, name);
  }
  return item;
}

namespace {

Value filter_items(const Call& call) {
  if (call.self.is_undefined()) return make_iterator(call.budget, {});
  if (!call.self.is(Kind::kDict)) {
    fail("{}() takes a mapping, not '{}'", call.builtin.name, type_name(call.self));
  }
  return make_iterator(call.budget, pairs_of(call.budget, call.self));
}

// A key to sort or compare by: the attribute of an item, in lower case unless case matters.
Value key_of(const Call& call, const Value& item, const Values& path, bool case_sensitive) {
  Value key = attribute_of(call, item, path);
  if (case_sensitive || !key.is_string()) return key;
  return make_string(call.budget, text::map_case(text_of(key), text::CaseMapping::kLower));
}

// The order that Python's sorted() gives items by their keys: stable, also when reversed.
Value sorted(Budget& budget, const Values& items, const Values& keys, bool reverse) {
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    budget.step();
    return reverse ? compare(budget, CompareOp::kLt, keys[b], keys[a])
                   : compare(budget, CompareOp::kLt, keys[a], keys[b]);
  });
  Values picked;
  for (const size_t index : order) picked.push_back(items[index]);
  return make_list(budget, std::move(picked));
}

// The first argument, missing where there is none.
Value take_first(Arguments& arguments) {
  if (arguments.positional.empty()) return {};
  Value first = std::move(arguments.positional.front());
  arguments.positional.erase(arguments.positional.begin());
  return first;
}

// [attribute] [test [arguments ...]]
Value select(const Call& call, bool by_attribute, bool wanted) {
  if (!is_truthy(call.self)) return make_iterator(call.budget, {});
  Arguments& arguments = call.arguments;
  Values kept;
  const Value attribute = by_attribute ? take_first(arguments) : Value();
  if (by_attribute && attribute.is_missing()) {
    fail("Missing parameter for attribute name");
  }
  const Value test = take_first(arguments);
  const Values path = attribute_path(call.budget, attribute);
  const Builtin* found = nullptr;
  const Value list = call.in.to_list(call.self);
  for (const Value& item : items_of(list)) {
    call.budget.step();
    Value value = attribute_of(call, item, path);
    if (!test.is_missing()) {
      if (found == nullptr) found = &call.in.find_named(Refused::kTest, test);
      Arguments given = arguments;
      value = invoke(call.in, *found, value, given);
    }
    if (is_truthy(value) == wanted) kept.push_back(item);
  }
  return make_iterator(call.budget, std::move(kept));
}

Value filter_dictsort(const Call& call) {  // case_sensitive? by? reverse?
  const std::string by = call.has(1) ? call.text(1) : "key";
  if (by != "key" && by != "value") {
    fail("You can only sort by either \"key\" or \"value\"");
  }
  const Value pairs = call.in.to_list(filter_items(call));
  Values keys;
  for (const Value& pair : items_of(pairs)) {
    keys.push_back(key_of(call, items_of(pair)[by == "key" ? 0 : 1], {}, call.flag(0, false)));
  }
  return sorted(call.budget, items_of(pairs), keys, call.flag(2, false));
}

Value filter_sort(const Call& call) {  // reverse? case_sensitive? attribute?
  const Value list = call.in.to_list(call.self);
  std::vector<Values> paths;
  if (call[2].is_string()) {
    for (const std::string_view part : split(call.budget, call.text(2), ",", -1)) {
      paths.push_back(attribute_path(call.budget, make_string(call.budget, std::string(part))));
    }
  } else {
    paths.push_back(attribute_path(call.budget, call[2]));
  }
  Values keys;
  for (const Value& item : items_of(list)) {
    Values key;
    for (const Values& path : paths) {
      key.push_back(key_of(call, item, path, call.flag(1, false)));
    }
    keys.push_back(make_list(call.budget, std::move(key)));
  }
  return sorted(call.budget, items_of(list), keys, call.flag(0, false));
}

Value filter_select(const Call& call) { return select(call, false, true); }
Value filter_reject(const Call& call) { return select(call, false, false); }
Value filter_selectattr(const Call& call) { return select(call, true, true); }
Value filter_rejectattr(const Call& call) { return select(call, true, false); }

Value filter_unique(const Call& call) {  // case_sensitive? attribute?
  const Value seen = make_dict(call.budget);
  const Value list = call.in.to_list(call.self);
  const Values path = attribute_path(call.budget, call[1]);
  Values kept;
  for (const Value& item : items_of(list)) {
    const Value key = key_of(call, item, path, call.flag(0, false));
    if (seen.as<Dict>().find(key) != nullptr) continue;
    seen.as<Dict>().set(key, Value::none());
    kept.push_back(item);
  }
  return make_iterator(call.budget, std::move(kept));
}

// A filter with its arguments, or attribute= and default=.
Value filter_map(const Call& call) {
  if (!is_truthy(call.self)) return make_iterator(call.budget, {});
  Arguments& arguments = call.arguments;
  Value name = take_first(arguments);
  const bool is_attribute = name.is_missing();
  Value otherwise;
  if (is_attribute) {
    for (auto& [key, value] : arguments.named) {
      if (text_of(key) != "attribute" && text_of(key) != "default") {
        fail("Unexpected keyword argument '{}'", text_of(key));
      }
      (text_of(key) == "default" ? otherwise : name) = value;
    }
    if (name.is_missing()) fail("map requires a filter argument");
  }
  const Values path = is_attribute ? attribute_path(call.budget, name) : Values();
  const Builtin* found = nullptr;
  const Value list = call.in.to_list(call.self);
  Values mapped;
  for (const Value& item : items_of(list)) {
    call.budget.step();
    Value value = attribute_of(call, item, path);
    if (!is_attribute) {
      if (found == nullptr) found = &call.in.find_named(Refused::kFilter, name);
      Arguments given = arguments;
      value = invoke(call.in, *found, item, given);
    }
    if (value.is_undefined() && !otherwise.is_missing()) value = otherwise;
    mapped.push_back(std::move(value));
  }
  return make_iterator(call.budget, std::move(mapped));
}

Value filter_first(const Call& call) {
  if (call.self.is(Kind::kIterator)) {
    auto& iterator = call.self.as<Iterator>();
    const Values& items = items_of(iterator.items);
    if (iterator.next < items.size()) return items[iterator.next++];
  } else {
    const Value list = call.in.to_list(call.self);
    if (!items_of(list).empty()) return items_of(list).front();
  }
  return make_undefined(call.budget, "No first item, sequence was empty.");
}

Value filter_last(const Call& call) {
  if (call.self.is(Kind::kIterator)) fail("'generator' object is not reversible");
  const Value list = call.in.to_list(call.self);
  if (!items_of(list).empty()) return items_of(list).back();
  return make_undefined(call.budget, "No last item, sequence was empty.");
}

Value filter_list(const Call& call) {
  const Value list = call.in.to_list(call.self);
  return list.is(Kind::kList) ? list : make_list(call.budget, items_of(list));
}

Value filter_reverse(const Call& call) {
  const Value list = call.in.to_list(call.self);
  Values items(items_of(list).rbegin(), items_of(list).rend());
  if (call.self.is(Kind::kIterator)) return make_list(call.budget, std::move(items));
  if (!call.self.is_string()) return make_iterator(call.budget, std::move(items));
  return join_characters(call.budget, items, is_markup(call.self));
}

// clang-format off
constexpr Builtin kSequenceFilters[] = {
    {"dictsort", "case_sensitive? by? reverse?", filter_dictsort}, {"first", "", filter_first},
    {"items", "", filter_items}, {"last", "", filter_last}, {"list", "", filter_list},
    {"map", "...", filter_map}, {"reject", "...", filter_reject},
    {"rejectattr", "...", filter_rejectattr}, {"reverse", "", filter_reverse},
    {"select", "...", filter_select}, {"selectattr", "...", filter_selectattr},
    {"sort", "reverse? case_sensitive? attribute?", filter_sort},
    {"unique", "case_sensitive? attribute?", filter_unique},
};
// clang-format on

}  // namespace

const Builtin* find_sequence_filter(std::string_view name) {
  return find_builtin(kSequenceFilters, name);
}

}  // namespace nanovllm::jinja
