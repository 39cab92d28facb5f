#include "text/jinja/function.h"

#include <algorithm>

#include "text/jinja/interpreter.h"
#include "text/jinja/operators.h"

namespace nanovllm::jinja {
namespace {

// Puts named arguments behind the positional ones, missing values where none is given.
void bind_arguments(const Builtin& builtin, Arguments& arguments) {
  Values& values = arguments.positional;
  const auto most = static_cast<size_t>(builtin.most);
  if (values.size() > most) {
    fail(Fault::kType, "{}() takes at most {} argument{}, but {} were given", builtin.name, most,
         most == 1 ? "" : "s", values.size());
  }
  values.resize(most);
  std::string_view parameters = builtin.parameters;
  if (parameters.starts_with('/')) {
    if (!arguments.named.empty())
      fail(Fault::kType, "{}() takes no keyword arguments", builtin.name);
    parameters.remove_prefix(std::min<size_t>(2, parameters.size()));
  }
  size_t used = 0;
  for (size_t i = 0; i < most; ++i) {
    const size_t end = std::min(parameters.find(' '), parameters.size());
    std::string_view name = parameters.substr(0, end);
    parameters.remove_prefix(std::min(end + 1, parameters.size()));
    const bool is_optional = name.ends_with('?');
    if (is_optional) name.remove_suffix(1);
    for (const auto& [key, value] : arguments.named) {
      if (text_of(key) != name) continue;
      if (!values[i].is_missing()) {
        fail(Fault::kType, "{}() got multiple values for argument '{}'", builtin.name, name);
      }
      values[i] = value;
      ++used;
    }
    if (values[i].is_missing() && !is_optional) {
      fail(Fault::kType, "{}() misses the argument '{}'", builtin.name, name);
    }
  }
  if (used < arguments.named.size()) {
    fail(Fault::kType, "{}() got an unexpected keyword argument", builtin.name);
  }
}

}  // namespace

const Builtin* find_builtin(std::span<const Builtin> table, std::string_view name) {
  const auto found = std::lower_bound(
      table.begin(), table.end(), name,
      [](const Builtin& builtin, std::string_view value) { return builtin.name < value; });
  return found != table.end() && found->name == name ? &*found : nullptr;
}

Value invoke(Interpreter& in, const Builtin& builtin, const Value& self, Arguments& arguments) {
  const size_t given = arguments.positional.size();
  const bool is_bound = arguments.named.empty() && given == static_cast<size_t>(builtin.most);
  if (!is_bound && builtin.parameters != "...") bind_arguments(builtin, arguments);
  return builtin.run({in, in.budget(), builtin, self, arguments});
}

int64_t Call::integer(size_t i, int64_t otherwise) const {
  const Value& value = (*this)[i];
  if (value.is_missing()) return otherwise;
  if (value.is_undefined()) fail_undefined(value);
  if (!value.is_integer()) {
    fail(Fault::kType, "{}() takes an integer, not '{}'", builtin.name, type_name(value));
  }
  return value.as_int();
}

bool Call::flag(size_t i, bool otherwise) const {
  return (*this)[i].is_missing() ? otherwise : is_truthy((*this)[i]);
}

const std::string& Call::text(size_t i) const {
  if (!(*this)[i].is_string()) {
    fail(Fault::kType, "{}() takes a string, not '{}'", builtin.name, type_name((*this)[i]));
  }
  return text_of((*this)[i]);
}

}  // namespace nanovllm::jinja
