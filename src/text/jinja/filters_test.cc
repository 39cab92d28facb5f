// Every filter but those of texts.
#include <gtest/gtest.h>

#include "text/jinja/table_testing.h"

namespace nanovllm::jinja {
namespace {

TEST(JinjaFilters, Abs) {
  check(true, {
                  {"-5|abs", "5"},
                  {"-1.5|abs", "1.5"},
                  {"true|abs", "1"},
                  {"'x'|abs", kFails},
                  {"missing|abs", kFails},
              });
}

TEST(JinjaFilters, CountAndLength) {
  check(true, {
                  {"l|count", "3"},
                  {"s|length", "11"},
                  {"'\303\244\303\266\303\274\360\237\221\213'|length", "4"},
                  {"d|length", "3"},
                  {"5|length", kFails},
                  {"missing|length", "0"},
                  {"(l|map('abs'))|length", kFails},
              });
}

TEST(JinjaFilters, Default) {
  check(true, {
                  {"missing|default('x')", "x"},
                  {"missing|d('x')", "x"},
                  {"''|default('x')", ""},
                  {"''|default('x', true)", "x"},
                  {"missing|default", ""},
                  {"none|default('x')", "None"},
                  {"missing.x|default('y')", kFails},
              });
}

TEST(JinjaFilters, Dictsort) {
  check(true, {
                  {"d|dictsort", "[('a', 2), ('b', 1), ('C', 3)]"},
                  {"d|dictsort(true)", "[('C', 3), ('a', 2), ('b', 1)]"},
                  {"d|dictsort(by='value', reverse=true)", "[('C', 3), ('a', 2), ('b', 1)]"},
                  {"d|dictsort(by='x')", kFails},
                  {"l|dictsort", kFails},
              });
}

TEST(JinjaFilters, FirstAndLast) {
  check(true, {
                  {"l|first", "3"},
                  {"l|last", "2"},
                  {"''|first", ""},
                  {"'abc'|last", "c"},
                  {"d|first", "b"},
                  {"5|first", kFails},
                  {"(l|map('abs'))|first", "3"},
                  {"(l|map('abs'))|last", kFails},
              });
}

TEST(JinjaFilters, Float) {
  check(true, {
                  {"'1.5'|float", "1.5"},
                  {"'x'|float", "0.0"},
                  {"'x'|float(2.5)", "2.5"},
                  {"none|float", "0.0"},
                  {"' 1e3 '|float", "1000.0"},
                  {"missing|float", kFails},
              });
}

TEST(JinjaFilters, Int) {
  check(true, {
                  {"'42'|int", "42"},
                  {"'42.9'|int", "42"},
                  {"'x'|int", "0"},
                  {"'x'|int(7)", "7"},
                  {"3.99|int", "3"},
                  {"none|int", "0"},
                  {"missing|int", kFails},
                  {"' -5 '|int", "-5"},
              });
}

TEST(JinjaFilters, Items) {
  check(true, {
                  {"d|items|list", "[('b', 1), ('a', 2), ('C', 3)]"},
                  {"missing|items|list", "[]"},
                  {"l|items|list", kFails},
              });
}

TEST(JinjaFilters, List) {
  check(true, {
                  {"'\303\244b'|list", "['\303\244', 'b']"},
                  {"d|list", "['b', 'a', 'C']"},
                  {"range(3)|list", "[0, 1, 2]"},
                  {"5|list", kFails},
              });
}

TEST(JinjaFilters, Map) {
  check(true, {
                  {"users|map(attribute='name')|list", "['Zoe', 'adam', 'Bob']"},
                  {"users|map(attribute='tags', default='-')|list", "['-', '-', ['x']]"},
                  {"users|map(attribute='tags.0')|list", kFails},
                  {"l|map('string')|list", "['3', '1', '2']"},
                  {"l|map('nope')|list", kFails},
                  {"l|map|list", kFails},
                  {"[]|map('nope')|list", "[]"},
              });
}

TEST(JinjaFilters, SelectAndReject) {
  check(true,
        {
            {"l|select('odd')|list", "[3, 1]"},
            {"l|reject('odd')|list", "[2]"},
            {"[0, 1, '']|select|list", "[1]"},
            {"users|selectattr('tags')|list|length", "1"},
            {"users|rejectattr('tags')|list|length", "2"},
            {"users|selectattr('age', 'gt', 26)|map(attribute='name')|list", "['Zoe', 'Bob']"},
            {"l|select('nope')|list", kFails},
            {"[]|select('nope')|list", "[]"},
            {"l|select('gt', 1)|select('lt', 3)|list", "[2]"},
            {"users|selectattr|list", kFails},
        });
}

TEST(JinjaFilters, Reverse) {
  check(true, {
                  {"'\303\244b\360\237\221\213'|reverse", "\360\237\221\213b\303\244"},
                  {"l|reverse|list", "[2, 1, 3]"},
                  {"d|reverse|list", "['C', 'a', 'b']"},
                  {"(l|map('abs'))|reverse", "[2, 1, 3]"},
                  {"5|reverse", kFails},
              });
}

TEST(JinjaFilters, Sort) {
  check(true, {
                  {"l|sort", "[1, 2, 3]"},
                  {"l|sort(reverse=true)", "[3, 2, 1]"},
                  {"['b', 'A', 'a']|sort", "['A', 'a', 'b']"},
                  {"['b', 'A', 'a']|sort(case_sensitive=true)", "['A', 'a', 'b']"},
                  {"users|sort(attribute='age,name')|map(attribute='name')|list",
                   "['adam', 'Bob', 'Zoe']"},
                  {"[none, none]|sort", "[None, None]"},
                  {"d|sort", "['a', 'b', 'C']"},
              });
}

TEST(JinjaFilters, Tojson) {
  check(true,
        {
            {"{'b': [1, 2.0, none, true], 'a': '\303\251\"\\\\\\n'}|tojson",
             "{\"b\": [1, 2.0, null, true], \"a\": \"\303\251\\\"\\\\\\n\"}"},
            {"{'b': 1, 'a': {}}|tojson(indent=2)", "{\n  \"b\": 1,\n  \"a\": {}\n}"},
            {"{'b': 1, 'a': 2}|tojson(sort_keys=true)", "{\"a\": 2, \"b\": 1}"},
            {"'~\x7f'|tojson(ensure_ascii=true)", "\"~\\u007f\""},
            {"'~\x7f'|tojson", "\"~\x7f\""},
            {"'\303\251\360\237\221\213'|tojson(ensure_ascii=true)", "\"\\u00e9\\ud83d\\udc4b\""},
            {"[1, {'a': 2}]|tojson(separators=(',', ':'))", "[1,{\"a\":2}]"},
            {"[[]]|tojson(indent=0)", "[\n[]\n]"},
            {"missing|tojson", kFails},
            {"{1: 2, none: 3, true: 4}|tojson", "{\"1\": 4, \"null\": 3}"},
            {"{(1,): 2}|tojson", kFails},
            {"'\\x00\\x7f<>&'|tojson", "\"\\u0000\177<>&\""},
            {"[1e20, 1e-7, 0.1]|tojson", "[1e+20, 1e-07, 0.1]"},
            {"('inf'|float)|tojson", "Infinity"},
        });
}

TEST(JinjaFilters, Unique) {
  check(true, {
                  {"[1, 1.0, true, 2]|unique|list", "[1, 2]"},
                  {"['a', 'A', 'b']|unique|list", "['a', 'b']"},
                  {"['a', 'A']|unique(true)|list", "['a', 'A']"},
                  {"users|unique(attribute='age')|list|length", "2"},
                  {"[[1]]|unique|list", kFails},
              });
}

TEST(JinjaFilters, UnknownFiltersAreFoundWhenTheyCanRun) {
  check(true, {
                  {"s|nope", kFails},
                  {"(s|nope) if false else 1", "1"},
                  {"true or s|nope", "True"},
                  {"1 if true else s|nope", "1"},
              });
}

}  // namespace
}  // namespace nanovllm::jinja
