// Every filter.
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

TEST(JinjaFilters, Attr) {
  check(true, {
                  {"d|attr('a')", ""},
                  {"users|attr('x')", ""},
                  {"missing|attr('x')", kFails},
              });
}

TEST(JinjaFilters, Batch) {
  check(true, {
                  {"l|batch(2)|list", "[[3, 1], [2]]"},
                  {"l|batch(2, '-')|list", "[[3, 1], [2, '-']]"},
                  {"[]|batch(2)|list", "[]"},
                  {"l|batch(0)|list", "[[], [3, 1, 2]]"},
              });
}

TEST(JinjaFilters, Capitalize) {
  check(true, {
                  {"'heLLO wORLD'|capitalize", "Hello world"},
                  {"5|capitalize", "5"},
                  {"'\303\237x'|capitalize", "Ssx"},
              });
}

TEST(JinjaFilters, Center) {
  check(true, {
                  {"'ab'|center(5)", "  ab "},
                  {"'ab'|center(1)", "ab"},
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

TEST(JinjaFilters, Escape) {
  check(true, {
                  {"'<a>&\"\\''|escape", "&lt;a&gt;&amp;&#34;&#39;"},
                  {"'<'|e|e", "&lt;"},
                  {"('<'|e)|forceescape", "&amp;lt;"},
                  {"5|e", "5"},
              });
}

TEST(JinjaFilters, Filesizeformat) {
  check(true, {
                  {"1|filesizeformat", "1 Byte"},
                  {"999|filesizeformat", "999 Bytes"},
                  {"1500|filesizeformat", "1.5 kB"},
                  {"1048576|filesizeformat(true)", "1.0 MiB"},
                  {"1e30|filesizeformat", "1000000.0 YB"},
                  {"'x'|filesizeformat", kFails},
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

TEST(JinjaFilters, Format) {
  check(true, {
                  {"'%s-%03d'|format('a', 7)", "a-007"},
                  {"'%(k)s'|format(k=1)", "1"},
                  {"'%s'|format(1, k=2)", kFails},
                  {"'%s'|format()", kFails},
              });
}

TEST(JinjaFilters, Groupby) {
  check(true, {
                  {"users|groupby('age')|map('first')|list", "[25, 30]"},
                  {"users|groupby('age')|map(attribute='list')|map('length')|list", "[1, 2]"},
                  {"users|groupby('tags', default='-')|length", kFails},
                  {"(users|groupby('age')|first).grouper", "25"},
              });
}

TEST(JinjaFilters, Indent) {
  check(true, {
                  {"'a\\nb\\n\\nc'|indent", "a\n    b\n\n    c"},
                  {"'a\\nb'|indent(2, true)", "  a\n  b"},
                  {"'a\\n\\nb'|indent(1, blank=true)", "a\n \n b"},
                  {"'a\\nb'|indent('> ')", "a\n> b"},
                  {"5|indent", kFails},
              });
}

TEST(JinjaFilters, Int) {
  check(true, {
                  {"'42'|int", "42"},
                  {"'42.9'|int", "42"},
                  {"'x'|int", "0"},
                  {"'x'|int(7)", "7"},
                  {"'0x1A'|int(base=16)", "26"},
                  {"'0b11'|int(0, 2)", "3"},
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

TEST(JinjaFilters, Join) {
  check(true, {
                  {"l|join", "312"},
                  {"l|join(', ')", "3, 1, 2"},
                  {"users|join('/', attribute='name')", "Zoe/adam/Bob"},
                  {"'abc'|join('-')", "a-b-c"},
                  {"5|join", kFails},
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

TEST(JinjaFilters, LowerAndUpper) {
  check(true, {
                  {"'\303\204B'|lower", "\303\244b"},
                  {"'\303\244\303\237'|upper", "\303\204SS"},
                  {"5|upper", "5"},
                  {"'\316\221\316\243'|lower", "\316\261\317\202"},
                  {"missing|upper", ""},
              });
}

TEST(JinjaFilters, Map) {
  check(true, {
                  {"users|map(attribute='name')|list", "['Zoe', 'adam', 'Bob']"},
                  {"users|map(attribute='tags', default='-')|list", "['-', '-', ['x']]"},
                  {"users|map(attribute='tags.0')|list", kFails},
                  {"l|map('string')|list", "['3', '1', '2']"},
                  {"l|map('round', 1)|list", "[3, 1, 2]"},
                  {"l|map('nope')|list", kFails},
                  {"l|map|list", kFails},
                  {"[]|map('nope')|list", "[]"},
              });
}

TEST(JinjaFilters, MaxAndMin) {
  check(true, {
                  {"l|max", "3"},
                  {"l|min", "1"},
                  {"['b', 'A']|max", "b"},
                  {"['b', 'A']|min", "A"},
                  {"['b', 'A']|min(true)", "A"},
                  {"users|max(attribute='age')", "{'name': 'Zoe', 'age': 30}"},
                  {"[]|max", ""},
                  {"[1, 'a']|min", kFails},
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
            {"users|selectattr|list", kFails},
        });
}

TEST(JinjaFilters, Replace) {
  check(true, {
                  {"'aaa'|replace('a', 'b')", "bbb"},
                  {"'aaa'|replace('a', 'b', 2)", "bba"},
                  {"'ab'|replace('', '-')", "-a-b-"},
                  {"707|replace(7, 8)", "808"},
                  {"'a'|replace('a')", kFails},
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

TEST(JinjaFilters, Round) {
  check(true, {
                  {"2.5|round", "2.0"},
                  {"3.5|round", "4.0"},
                  {"-2.5|round", "-2.0"},
                  {"2.675|round(2)", "2.67"},
                  {"42.55|round(1, 'floor')", "42.5"},
                  {"42.51|round(1, 'ceil')", "42.6"},
                  {"42|round", "42"},
                  {"1250|round(-2)", "1200"},
                  {"1234.5|round(-2)", "1200.0"},
                  {"1|round(0, 'x')", kFails},
                  {"'a'|round", kFails},
              });
}

TEST(JinjaFilters, Safe) {
  check(true, {
                  {"'<b>'|safe", "<b>"},
                  {"('<b>'|safe) + '<i>'", "<b>&lt;i&gt;"},
                  {"'<i>' + ('<b>'|safe)", "&lt;i&gt;<b>"},
                  {"('<b>'|safe) ~ '<i>'", "<b><i>"},
                  {"('<%s>'|safe) % '<'", "<&lt;>"},
                  {"[('<'|safe)]", "[Markup('<')]"},
                  {"('<>'|safe)|list", "['<', '>']"},
                  {"('<>'|safe)|first is escaped", "False"},
                  {"('<>'|safe)|last is escaped", "True"},
                  {"(','|safe).join(['<'])", "&lt;"},
              });
}

TEST(JinjaFilters, Slice) {
  check(true, {
                  {"l|slice(2)|list", "[[3, 1], [2]]"},
                  {"l|slice(2, '-')|list", "[[3, 1], [2, '-']]"},
                  {"l|slice(0)|list", kFails},
                  {"l|slice(5)|list", "[[3], [1], [2], [], []]"},
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
                  {"[1, 'a']|sort", kFails},
                  {"[none, none]|sort", "[None, None]"},
                  {"d|sort", "['a', 'b', 'C']"},
              });
}

TEST(JinjaFilters, String) {
  check(true, {
                  {"5|string", "5"},
                  {"none|string", "None"},
                  {"[1, 'a']|string", "[1, 'a']"},
                  {"missing|string", ""},
              });
}

TEST(JinjaFilters, Sum) {
  check(true, {
                  {"l|sum", "6"},
                  {"l|sum(start=1)", "7"},
                  {"users|sum(attribute='age')", "85"},
                  {"['a']|sum", kFails},
                  {"[[1], [2]]|sum(start=[])", "[1, 2]"},
                  {"[]|sum", "0"},
              });
}

TEST(JinjaFilters, Title) {
  check(true, {
                  {"'hello wORLD-foo (bar) they\\'re'|title", "Hello World-Foo (Bar) They're"},
                  {"'\303\237x \307\206'|title", "SSx \307\204"},
              });
}

TEST(JinjaFilters, Tojson) {
  check(true,
        {
            {"{'b': [1, 2.0, none, true], 'a': '\303\251\"\\\\\\n'}|tojson",
             "{\"b\": [1, 2.0, null, true], \"a\": \"\303\251\\\"\\\\\\n\"}"},
            {"{'b': 1, 'a': {}}|tojson(indent=2)", "{\n  \"b\": 1,\n  \"a\": {}\n}"},
            {"{'b': 1, 'a': 2}|tojson(sort_keys=true)", "{\"a\": 2, \"b\": 1}"},
            {"'\303\251\360\237\221\213'|tojson(ensure_ascii=true)", "\"\\u00e9\\ud83d\\udc4b\""},
            {"[1, {'a': 2}]|tojson(separators=(',', ':'))", "[1,{\"a\":2}]"},
            {"[[]]|tojson(indent=0)", "[\n[]\n]"},
            {"missing|tojson", kFails},
            {"{1: 2, none: 3, true: 4}|tojson", "{\"1\": 4, \"null\": 3}"},
            {"{(1,): 2}|tojson", kFails},
            {"'\\x00\\x7f<>&'|tojson", "\"\\u0000\177<>&\""},
            {"range(2)|tojson", kFails},
            {"[1e20, 1e-7, 0.1]|tojson", "[1e+20, 1e-07, 0.1]"},
            {"('inf'|float)|tojson", "Infinity"},
        });
}

TEST(JinjaFilters, Trim) {
  check(true, {
                  {"'  a '|trim", "a"},
                  {"'xax'|trim('x')", "a"},
                  {"5|trim", "5"},
              });
}

TEST(JinjaFilters, Truncate) {
  check(true, {
                  {"'foo bar baz qux'|truncate(9)", "foo..."},
                  {"'foo bar baz qux'|truncate(9, true)", "foo ba..."},
                  {"'foo bar baz qux'|truncate(11)", "foo bar baz qux"},
                  {"'foo bar baz qux'|truncate(11, false, '...', 0)", "foo bar..."},
                  {"'abc'|truncate(2)", kFails},
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

TEST(JinjaFilters, Urlencode) {
  check(true, {
                  {"'a b/c?\303\251'|urlencode", "a%20b/c%3F%C3%A9"},
                  {"{'a b': 'c/d', 'e': 1}|urlencode", "a+b=c%2Fd&e=1"},
                  {"[('x', 1)]|urlencode", "x=1"},
                  {"[1]|urlencode", kFails},
                  {"5|urlencode", "5"},
              });
}

TEST(JinjaFilters, Wordcount) {
  check(true, {
                  {"'one two-three, vier_f\303\274nf'|wordcount", "4"},
                  {"''|wordcount", "0"},
              });
}

TEST(JinjaFilters, Xmlattr) {
  check(true, {
                  {"{'a': '<', 'b': none, 'c': 1}|xmlattr", " a=\"&lt;\" c=\"1\""},
                  {"{'a': 1}|xmlattr(false)", "a=\"1\""},
                  {"{'a b': 1}|xmlattr", kFails},
                  {"5|xmlattr", kFails},
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
