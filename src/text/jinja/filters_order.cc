#include <algorithm>
#include <numeric>

#include "text/jinja/attribute_getter.h"
#include "text/jinja/filters.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"
#include "text/jinja/text.h"

namespace nanovllm::jinja {
namespace {

// The order that Python's sorted() gives `keys`: stable, also when reversed.
std::vector<size_t> sorted_order(Budget& budget, const Values& keys, bool reverse) {
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    budget.step();
    return reverse ? compare(budget, CompareOp::kLt, keys[b], keys[a])
                   : compare(budget, CompareOp::kLt, keys[a], keys[b]);
  });
  return order;
}

Value pick(Budget& budget, const Values& items, const std::vector<size_t>& order) {
  Values picked;
  picked.reserve(items.size());
  for (const size_t index : order) picked.push_back(items[index]);
  return make_list(budget, std::move(picked));
}

Value min_or_max(Interpreter& in, const Value& value, Arguments& arguments, CompareOp better) {
  const auto [case_sensitive, attribute] =
      bind<2>(arguments, "min", {"case_sensitive?", "attribute?"});
  const AttributeGetter getter(in, attribute, !bool_argument(case_sensitive, false));
  Value best;
  Value best_key;
  in.for_each(value, [&](const Value& item) {
    Value key = getter(in, item);
    if (best.is_missing() || compare(in.budget(), better, key, best_key)) {
      best = item;
      best_key = std::move(key);
    }
    return true;
  });
  if (!best.is_missing()) return best;
  return make_undefined(in.budget(), "No aggregated item, sequence was empty.", "");
}

// Each item whose key has not been seen before.
class UniqueIterator : public Iterator {
 public:
  UniqueIterator(Budget* budget, Value source, AttributeGetter getter)
      : Iterator(budget, source.depth()),
        source_(std::move(source)),
        getter_(std::move(getter)),
        seen_(make_dict(*budget)) {}

  bool next(Interpreter& in, Value& item) override {
    const Nesting nesting(in.budget());
    if (items_.is_missing()) items_ = in.iterate(source_);
    while (items_.as<Iterator>().next(in, item)) {
      in.budget().step();
      const Value key = getter_(in, item);
      if (seen_.as<Dict>().find(key) != nullptr) continue;
      seen_.as<Dict>().set(key, Value::none());
      return true;
    }
    return false;
  }

 private:
  Value source_;
  AttributeGetter getter_;
  Value seen_;
  Value items_;
};

}  // namespace

Value filter_sort(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [reverse, case_sensitive, attribute] =
      bind<3>(arguments, "sort", {"reverse?", "case_sensitive?", "attribute?"});
  const bool ignores_case = !bool_argument(case_sensitive, false);
  std::vector<AttributeGetter> getters;
  if (attribute != nullptr && attribute->is_string()) {
    for (const std::string_view part : split(in.budget(), text_of(*attribute), ",", -1)) {
      const Value name = make_string(in.budget(), std::string(part));
      getters.emplace_back(in, &name, ignores_case);
    }
  } else {
    getters.emplace_back(in, attribute, ignores_case);
  }
  const Values items = in.to_values(value);
  Values keys;
  keys.reserve(items.size());
  for (const Value& item : items) {
    Values key;
    for (const AttributeGetter& getter : getters) key.push_back(getter(in, item));
    keys.push_back(make_list(in.budget(), std::move(key)));
  }
  return pick(in.budget(), items, sorted_order(in.budget(), keys, bool_argument(reverse, false)));
}

Value filter_dictsort(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [case_sensitive, by, reverse] =
      bind<3>(arguments, "dictsort", {"case_sensitive?", "by?", "reverse?"});
  const std::string what = by == nullptr ? "key" : to_str(in.budget(), *by);
  if (what != "key" && what != "value") {
    fail(Fault::kRuntime, "You can only sort by either \"key\" or \"value\"");
  }
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is(Kind::kDict)) {
    fail(Fault::kType, "dictsort() takes a mapping, not '{}'", type_name(value));
  }
  Values items;
  Values keys;
  for (const Dict::Entry& entry : value.as<Dict>().entries()) {
    in.budget().step();
    items.push_back(make_tuple(in.budget(), {entry.key, entry.value}));
    const Value& key = what == "key" ? entry.key : entry.value;
    keys.push_back(bool_argument(case_sensitive, false) ? key : ignore_case(in, key));
  }
  return pick(in.budget(), items, sorted_order(in.budget(), keys, bool_argument(reverse, false)));
}

Value filter_groupby(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [attribute, otherwise, case_sensitive] =
      bind<3>(arguments, "groupby", {"attribute", "default?", "case_sensitive?"});
  const Value fallback = otherwise == nullptr ? Value() : *otherwise;
  const AttributeGetter getter(in, attribute, !bool_argument(case_sensitive, false), fallback);
  const AttributeGetter exact(in, attribute, false, fallback);
  const Values items = in.to_values(value);
  Values keys;
  for (const Value& item : items) keys.push_back(getter(in, item));
  const std::vector<size_t> order = sorted_order(in.budget(), keys, false);
  Values groups;
  for (size_t i = 0; i < order.size();) {
    Values members;
    const Value& key = keys[order[i]];
    // The group is named as its first member spells it.
    Value name = exact(in, items[order[i]]);
    for (; i < order.size() && equal(in.budget(), keys[order[i]], key); ++i) {
      members.push_back(items[order[i]]);
    }
    if (members.empty()) members.push_back(items[order[i++]]);  // a key that is not itself: nan
    Value group =
        make_tuple(in.budget(), {std::move(name), make_list(in.budget(), std::move(members))});
    group.as<List>().is_group = true;
    groups.push_back(std::move(group));
  }
  return make_list(in.budget(), std::move(groups));
}

Value filter_min(Interpreter& in, const Value& value, Arguments& arguments) {
  return min_or_max(in, value, arguments, CompareOp::kLt);
}

Value filter_max(Interpreter& in, const Value& value, Arguments& arguments) {
  return min_or_max(in, value, arguments, CompareOp::kGt);
}

Value filter_sum(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [attribute, start] = bind<2>(arguments, "sum", {"attribute?", "start?"});
  const AttributeGetter getter(in, attribute, false);
  Value total = start == nullptr ? Value::integer(0) : *start;
  if (total.is_string()) fail(Fault::kType, "sum() can't sum strings, use join instead");
  in.for_each(value, [&](const Value& item) {
    total = apply_binary(in, BinaryOp::kAdd, total, getter(in, item));
    return true;
  });
  return total;
}

Value filter_unique(Interpreter& in, const Value& value, Arguments& arguments) {
  const auto [case_sensitive, attribute] =
      bind<2>(arguments, "unique", {"case_sensitive?", "attribute?"});
  return make<UniqueIterator>(
      Kind::kIterator, in.budget(), value,
      AttributeGetter(in, attribute, !bool_argument(case_sensitive, false)));
}

}  // namespace nanovllm::jinja
