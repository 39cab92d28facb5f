// What the files of filters share.
#pragma once

#include <string>

#include "text/jinja/function.h"

namespace nanovllm::jinja {

Value filter_tojson(const Call& call);
const Builtin* find_sequence_filter(std::string_view name);
// An attribute of an item, "a.0.b" its path; the item itself where `attribute` is missing.
Value attribute_of(const Call& call, const Value& item, const Value& attribute);
// The argument `i` as spaces where it is a number.
std::string indention(const Call& call, size_t i, int64_t otherwise);

}  // namespace nanovllm::jinja
