// Calling: arguments, and the signature of everything built in.
#pragma once

#include <array>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace nanovllm::jinja {

struct Arguments {
  Values positional;
  std::vector<std::pair<Value, Value>> named;  // name (a string) and value, in order

  const Value* find(std::string_view name) const {
    for (const auto& [key, value] : named) {
      if (text_of(key) == name) return &value;
    }
    return nullptr;
  }
};

// A filter, test, method or global function. `self` is the filtered or tested value or the object
// of the method, missing for a global function.
using BuiltinCall = Value (*)(Interpreter& in, const Value& self, Arguments& arguments);

struct Builtin {
  std::string_view name;
  BuiltinCall call;
};

// A table of builtins sorted by name, so that it can be searched.
using BuiltinTable = std::span<const Builtin>;
const Builtin* find_builtin(BuiltinTable table, std::string_view name);

// Fills `out` with pointers to the arguments for `parameters`, nullptr for those not given. A name
// that ends in '?' is optional; after "/" (which takes no place in out) the names before it can't
// be used. Throws kType as Python does.
void bind_arguments(const Arguments& arguments, std::string_view function,
                    std::initializer_list<std::string_view> parameters,
                    std::span<const Value*> out);

template <size_t N>
std::array<const Value*, N> bind(const Arguments& arguments, std::string_view function,
                                 std::initializer_list<std::string_view> parameters) {
  std::array<const Value*, N> bound{};
  bind_arguments(arguments, function, parameters, bound);
  return bound;
}
// For functions without parameters.
void bind_none(const Arguments& arguments, std::string_view function);

// Conversions of arguments; all throw kType, naming the function.
int64_t int_argument(const Value* value, int64_t otherwise, std::string_view function);
bool bool_argument(const Value* value, bool otherwise);
const std::string& text_argument(const Value& value, std::string_view function);

}  // namespace nanovllm::jinja
