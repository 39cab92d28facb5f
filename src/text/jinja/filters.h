// What the files of filters share.
#pragma once

#include <string>

#include "text/jinja/function.h"

namespace nanovllm::jinja {

Value filter_tojson(const Call& call);
const Builtin* find_sequence_filter(std::string_view name);
// The names and indices in "a.0.b"; none where `attribute` is missing.
Values attribute_path(Budget& budget, const Value& attribute);
// What the path leads to from `item`.
Value attribute_of(const Call& call, Value item, const Values& path);
// The argument `i` as spaces where it is a number.
std::string indention(const Call& call, size_t i, int64_t otherwise);

}  // namespace nanovllm::jinja
