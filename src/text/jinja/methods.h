// The tables of methods, sorted by name.
#pragma once

#include "text/jinja/function.h"

namespace nanovllm::jinja {

BuiltinTable string_methods();
BuiltinTable list_methods();
BuiltinTable tuple_methods();
BuiltinTable dict_methods();
BuiltinTable range_methods();
BuiltinTable integer_methods();
BuiltinTable float_methods();
BuiltinTable cycler_methods();
BuiltinTable dict_type_methods();  // of the global `dict`

}  // namespace nanovllm::jinja
