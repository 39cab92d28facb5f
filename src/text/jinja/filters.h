// The filters that stand in a file of their own, and what filters share.
#pragma once

#include <string>

#include "text/jinja/function.h"

namespace nanovllm::jinja {

// to_json.cc
Value filter_tojson(const Call& call);

// filters_sequence.cc
Value filter_dictsort(const Call& call);
Value filter_first(const Call& call);
Value filter_items(const Call& call);
Value filter_last(const Call& call);
Value filter_list(const Call& call);
Value filter_map(const Call& call);
Value filter_max(const Call& call);
Value filter_min(const Call& call);
Value filter_reject(const Call& call);
Value filter_rejectattr(const Call& call);
Value filter_reverse(const Call& call);
Value filter_select(const Call& call);
Value filter_selectattr(const Call& call);
Value filter_sort(const Call& call);
Value filter_sum(const Call& call);
Value filter_unique(const Call& call);

// What argument `i` gives of an item: the item itself without one, else its attribute "a.0.b".
Value attribute_of(const Call& call, const Value& item, const Value& attribute);
// The argument `i` as spaces where it is a number.
std::string indention(const Call& call, size_t i, int64_t otherwise);

}  // namespace nanovllm::jinja
