#include "text/jinja/builtins.h"

#include "text/jinja/filters.h"
#include "text/jinja/globals.h"
#include "text/jinja/tests.h"

namespace nanovllm::jinja {
namespace {

constexpr Builtin kFilters[] = {
    {"abs", filter_abs},
    {"attr", filter_attr},
    {"batch", filter_batch},
    {"capitalize", filter_capitalize},
    {"center", filter_center},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"dictsort", filter_dictsort},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"filesizeformat", filter_filesizeformat},
    {"first", filter_first},
    {"float", filter_float},
    {"forceescape", filter_forceescape},
    {"format", filter_format},
    {"groupby", filter_groupby},
    {"indent", filter_indent},
    {"int", filter_int},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"lower", filter_lower},
    {"map", filter_map},
    {"max", filter_max},
    {"min", filter_min},
    {"pprint", filter_unsupported},
    {"random", filter_unsupported},
    {"reject", filter_reject},
    {"rejectattr", filter_rejectattr},
    {"replace", filter_replace},
    {"reverse", filter_reverse},
    {"round", filter_round},
    {"safe", filter_safe},
    {"select", filter_select},
    {"selectattr", filter_selectattr},
    {"slice", filter_slice},
    {"sort", filter_sort},
    {"string", filter_string},
    {"striptags", filter_unsupported},
    {"sum", filter_sum},
    {"title", filter_title},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"truncate", filter_truncate},
    {"unique", filter_unique},
    {"upper", filter_upper},
    {"urlencode", filter_urlencode},
    {"urlize", filter_unsupported},
    {"wordcount", filter_wordcount},
    {"wordwrap", filter_unsupported},
    {"xmlattr", filter_xmlattr},
};

}  // namespace

const Builtin* find_filter(std::string_view name) { return find_builtin(kFilters, name); }
const Builtin* find_test(std::string_view name) { return find_builtin(tests(), name); }
const Builtin* find_global(std::string_view name) { return find_builtin(globals(), name); }

}  // namespace nanovllm::jinja
