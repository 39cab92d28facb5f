// Everything that comes with the language, by name.
#pragma once

#include <optional>
#include <string_view>

#include "text/jinja/function.h"
#include "text/jinja/value.h"

namespace nanovllm::jinja {

const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
// range, dict, namespace, cycler, joiner, raise_exception, strftime_now, ...
const Builtin* find_global(std::string_view name);
// The method of str, list, dict, ... that `object` has under this name, nullptr for none.
const Builtin* find_method(const Value& object, std::string_view name);

}  // namespace nanovllm::jinja
