// The filters, by file.
#pragma once

#include "text/jinja/function.h"
#include "text/jinja/value.h"

namespace nanovllm::jinja {

// filters_text.cc
Value filter_capitalize(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_center(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_escape(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_filesizeformat(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_forceescape(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_format(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_indent(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_join(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_lower(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_replace(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_safe(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_string(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_title(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_trim(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_truncate(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_upper(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_urlencode(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_wordcount(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_xmlattr(Interpreter& in, const Value& value, Arguments& arguments);

// filters_value.cc
Value filter_abs(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_attr(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_default(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_float(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_int(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_length(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_round(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_unsupported(Interpreter& in, const Value& value, Arguments& arguments);

// filters_sequence.cc
Value filter_batch(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_first(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_items(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_last(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_list(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_map(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_reject(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_rejectattr(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_reverse(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_select(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_selectattr(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_slice(Interpreter& in, const Value& value, Arguments& arguments);

// filters_order.cc
Value filter_dictsort(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_groupby(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_max(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_min(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_sort(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_sum(Interpreter& in, const Value& value, Arguments& arguments);
Value filter_unique(Interpreter& in, const Value& value, Arguments& arguments);

// to_json.cc
Value filter_tojson(Interpreter& in, const Value& value, Arguments& arguments);

}  // namespace nanovllm::jinja
