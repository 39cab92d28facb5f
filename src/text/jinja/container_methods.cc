// The methods of list, tuple, dict, range, int, float and cycler that do not modify anything.
#include <bit>
#include <cmath>

#include "text/jinja/builtins.h"
#include "text/jinja/globals.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"

namespace nanovllm::jinja {
namespace {

bool is_equal(Interpreter& in, const Value& a, const Value& b) {
  return a.is_same(b) || equal(in.budget(), a, b);
}

Value sequence_count(Interpreter& in, const Value& self, Arguments& arguments) {
  const auto [wanted] = bind<1>(arguments, "count", {"value", "/"});
  int64_t count = 0;
  in.for_each(self, [&, wanted = wanted](const Value& item) {
    count += is_equal(in, item, *wanted) ? 1 : 0;
    return true;
  });
  return Value::integer(count);
}

Value sequence_index(Interpreter& in, const Value& self, Arguments& arguments) {
  const auto [wanted, start, stop] = bind<3>(arguments, "index", {"value", "start?", "stop?", "/"});
  const int64_t length = length_of(self);
  const auto bound = [&](const Value* value, int64_t otherwise) {
    const int64_t at = int_argument(value, otherwise, "index");
    return at < 0 ? std::max<int64_t>(0, at + length) : at;
  };
  const int64_t from = bound(start, 0);
  const int64_t to = bound(stop, length);
  int64_t index = 0;
  int64_t found = -1;
  in.for_each(self, [&, wanted = wanted](const Value& item) {
    if (index >= from && index < to && is_equal(in, item, *wanted)) found = index;
    ++index;
    return found < 0;
  });
  if (found < 0) fail(Fault::kValue, "{} is not in the list", to_repr(in.budget(), *wanted));
  return Value::integer(found);
}

Value list_copy(Interpreter& in, const Value& self, Arguments& arguments) {
  bind_none(arguments, "copy");
  in.budget().work(items_of(self).size() * sizeof(Value));
  return make_list(in.budget(), items_of(self));
}

Value dict_get(Interpreter&, const Value& self, Arguments& arguments) {
  const auto [key, otherwise] = bind<2>(arguments, "get", {"key", "default?", "/"});
  if (const Value* found = self.as<Dict>().find(*key)) return *found;
  return otherwise == nullptr ? Value::none() : *otherwise;
}

template <ViewKind kWhich>
Value dict_view(Interpreter& in, const Value& self, Arguments& arguments) {
  bind_none(arguments, "dict method");
  return make<View>(Kind::kView, in.budget(), self, kWhich);
}

Value dict_copy(Interpreter& in, const Value& self, Arguments& arguments) {
  bind_none(arguments, "copy");
  Value copy = make_dict(in.budget());
  for (const Dict::Entry& entry : self.as<Dict>().entries()) {
    in.budget().step();
    copy.as<Dict>().set(entry.key, entry.value);
  }
  return copy;
}

Value dict_fromkeys(Interpreter& in, const Value&, Arguments& arguments) {
  const auto [keys, value] = bind<2>(arguments, "fromkeys", {"iterable", "value?", "/"});
  Value dict = make_dict(in.budget());
  in.for_each(*keys, [&, value = value](const Value& key) {
    dict.as<Dict>().set(key, value == nullptr ? Value::none() : *value);
    return true;
  });
  return dict;
}

Value bit_length(Interpreter&, const Value& self, Arguments& arguments) {
  bind_none(arguments, "bit_length");
  const int64_t number = self.as_int();
  const uint64_t magnitude =
      number < 0 ? 0 - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
  return Value::integer(64 - std::countl_zero(magnitude));
}

Value conjugate(Interpreter&, const Value& self, Arguments& arguments) {
  bind_none(arguments, "conjugate");
  return self.is(Kind::kBool) ? Value::integer(self.as_int()) : self;
}

Value is_whole(Interpreter&, const Value& self, Arguments& arguments) {
  bind_none(arguments, "is_integer");
  return Value::boolean(std::floor(self.as_float()) == self.as_float() &&
                        std::isfinite(self.as_float()));
}

Value cycler_next(Interpreter&, const Value& self, Arguments& arguments) {
  bind_none(arguments, "next");
  auto& cycler = self.as<Cycler>();
  Value item = items_of(cycler.items)[cycler.position];
  cycler.position = (cycler.position + 1) % items_of(cycler.items).size();
  return item;
}

Value cycler_reset(Interpreter&, const Value& self, Arguments& arguments) {
  bind_none(arguments, "reset");
  self.as<Cycler>().position = 0;
  return Value::none();
}

constexpr Builtin kList[] = {
    {"copy", list_copy}, {"count", sequence_count}, {"index", sequence_index}};
constexpr Builtin kSequence[] = {{"count", sequence_count}, {"index", sequence_index}};
constexpr Builtin kDict[] = {
    {"copy", dict_copy},
    {"fromkeys", dict_fromkeys},
    {"get", dict_get},
    {"items", dict_view<ViewKind::kItems>},
    {"keys", dict_view<ViewKind::kKeys>},
    {"values", dict_view<ViewKind::kValues>},
};
constexpr Builtin kDictType[] = {{"fromkeys", dict_fromkeys}};
constexpr Builtin kInteger[] = {{"bit_length", bit_length}, {"conjugate", conjugate}};
constexpr Builtin kFloat[] = {{"conjugate", conjugate}, {"is_integer", is_whole}};
constexpr Builtin kCycler[] = {{"next", cycler_next}, {"reset", cycler_reset}};

}  // namespace

BuiltinTable list_methods() { return kList; }
BuiltinTable tuple_methods() { return kSequence; }
BuiltinTable dict_methods() { return kDict; }
BuiltinTable range_methods() { return kSequence; }
BuiltinTable integer_methods() { return kInteger; }
BuiltinTable float_methods() { return kFloat; }
BuiltinTable cycler_methods() { return kCycler; }
BuiltinTable dict_type_methods() { return kDictType; }

const Builtin* find_method(const Value& object, std::string_view name) {
  switch (object.kind()) {
    case Kind::kString:
      return find_builtin(string_methods(), name);
    case Kind::kList:
      return find_builtin(kList, name);
    case Kind::kTuple:
      return find_builtin(kSequence, name);
    case Kind::kDict:
      return find_builtin(kDict, name);
    case Kind::kRange:
      return find_builtin(kSequence, name);
    case Kind::kBool:
    case Kind::kInt:
      return find_builtin(kInteger, name);
    case Kind::kFloat:
      return find_builtin(kFloat, name);
    case Kind::kCycler:
      return find_builtin(kCycler, name);
    case Kind::kFunction:
      return &object.as_function() == find_global("dict") ? find_builtin(kDictType, name) : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace nanovllm::jinja
