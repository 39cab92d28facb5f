#include "text/jinja/function.h"

#include <algorithm>

#include "text/jinja/operators.h"

namespace nanovllm::jinja {

const Builtin* find_builtin(BuiltinTable table, std::string_view name) {
  const auto found = std::lower_bound(
      table.begin(), table.end(), name,
      [](const Builtin& builtin, std::string_view value) { return builtin.name < value; });
  return found != table.end() && found->name == name ? &*found : nullptr;
}

void bind_arguments(const Arguments& arguments, std::string_view function,
                    std::initializer_list<std::string_view> parameters,
                    std::span<const Value*> out) {
  const bool positional_only =
      std::find(parameters.begin(), parameters.end(), "/") != parameters.end();
  const size_t count = out.size();
  if (arguments.positional.size() > count) {
    fail(Fault::kType, "{}() takes at most {} argument{}, but {} were given", function, count,
         count == 1 ? "" : "s", arguments.positional.size());
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) out[i] = &arguments.positional[i];
  if (positional_only && !arguments.named.empty()) {
    fail(Fault::kType, "{}() takes no keyword arguments", function);
  }
  const auto plain = [](std::string_view parameter) {
    return parameter.ends_with('?') ? parameter.substr(0, parameter.size() - 1) : parameter;
  };
  for (const auto& [key, value] : arguments.named) {
    size_t index = 0;
    for (const std::string_view parameter : parameters) {
      if (plain(parameter) == text_of(key)) break;
      ++index;
    }
    if (index >= count) {
      fail(Fault::kType, "{}() got an unexpected keyword argument '{}'", function, text_of(key));
    }
    if (out[index] != nullptr) {
      fail(Fault::kType, "{}() got multiple values for argument '{}'", function, text_of(key));
    }
    out[index] = &value;
  }
  size_t index = 0;
  for (const std::string_view parameter : parameters) {
    if (parameter == "/") continue;
    if (out[index] == nullptr && !parameter.ends_with('?')) {
      fail(Fault::kType, "{}() misses the argument '{}'", function, parameter);
    }
    ++index;
  }
}

void bind_none(const Arguments& arguments, std::string_view function) {
  bind_arguments(arguments, function, {}, {});
}

int64_t int_argument(const Value* value, int64_t otherwise, std::string_view function) {
  if (value == nullptr) return otherwise;
  if (value->is_undefined()) fail_undefined(*value);
  if (value->is(Kind::kBigInt)) fail(Fault::kOverflow, "{}(): the number is too large", function);
  if (!value->is_integer()) {
    fail(Fault::kType, "{}() takes an integer, not '{}'", function, type_name(*value));
  }
  return value->as_int();
}

bool bool_argument(const Value* value, bool otherwise) {
  return value == nullptr ? otherwise : is_truthy(*value);
}

const std::string& text_argument(const Value& value, std::string_view function) {
  if (!value.is_string()) {
    fail(Fault::kType, "{}() takes a string, not '{}'", function, type_name(value));
  }
  return text_of(value);
}

}  // namespace nanovllm::jinja
