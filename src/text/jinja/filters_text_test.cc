// The filters of texts.
#include <gtest/gtest.h>

#include "text/jinja/table_testing.h"

namespace nanovllm::jinja {
namespace {

TEST(JinjaTextFilters, Capitalize) {
  check(true, {
                  {"'heLLO wORLD'|capitalize", "Hello world"},
                  {"5|capitalize", "5"},
                  {"'\303\237x'|capitalize", "Ssx"},
              });
}

TEST(JinjaTextFilters, Center) {
  check(true, {
                  {"'ab'|center(5)", "  ab "},
                  {"'ab'|center(1)", "ab"},
              });
}

TEST(JinjaTextFilters, Escape) {
  check(true, {
                  {"'<a>&\"\\''|escape", "&lt;a&gt;&amp;&#34;&#39;"},
                  {"'<'|e|e", "&lt;"},
                  {"('<'|e)|forceescape", "&amp;lt;"},
                  {"5|e", "5"},
              });
}

TEST(JinjaTextFilters, Filesizeformat) {
  check(true, {
                  {"1|filesizeformat", "1 Byte"},
                  {"999|filesizeformat", "999 Bytes"},
                  {"1500|filesizeformat", "1.5 kB"},
                  {"1048576|filesizeformat(true)", "1.0 MiB"},
                  {"1e30|filesizeformat", "1000000.0 YB"},
                  {"'x'|filesizeformat", kFails},
              });
}

TEST(JinjaTextFilters, Format) {
  check(true, {
                  {"'%s-%03d'|format('a', 7)", "a-007"},
                  {"'%(k)s'|format(k=1)", "1"},
                  {"'%s'|format(1, k=2)", kFails},
                  {"'%s'|format()", kFails},
              });
}

TEST(JinjaTextFilters, Indent) {
  check(true, {
                  {"'a\\nb\\n\\nc'|indent", "a\n    b\n\n    c"},
                  {"'a\\nb'|indent(2, true)", "  a\n  b"},
                  {"'a\\n\\nb'|indent(1, blank=true)", "a\n \n b"},
                  {"'a\\nb'|indent('> ')", "a\n> b"},
                  {"5|indent", kFails},
              });
}

TEST(JinjaTextFilters, Join) {
  check(true, {
                  {"l|join", "312"},
                  {"l|join(', ')", "3, 1, 2"},
                  {"users|join('/', attribute='name')", "Zoe/adam/Bob"},
                  {"'abc'|join('-')", "a-b-c"},
                  {"5|join", kFails},
              });
}

TEST(JinjaTextFilters, LowerAndUpper) {
  check(true, {
                  {"'\303\204B'|lower", "\303\244b"},
                  {"'\303\244\303\237'|upper", "\303\204SS"},
                  {"5|upper", "5"},
                  {"'\316\221\316\243'|lower", "\316\261\317\202"},
                  {"missing|upper", ""},
              });
}

TEST(JinjaTextFilters, Replace) {
  check(true, {
                  {"'aaa'|replace('a', 'b')", "bbb"},
                  {"'aaa'|replace('a', 'b', 2)", "bba"},
                  {"'ab'|replace('', '-')", "-a-b-"},
                  {"707|replace(7, 8)", "808"},
                  {"'a'|replace('a')", kFails},
              });
}

TEST(JinjaTextFilters, Safe) {
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

TEST(JinjaTextFilters, String) {
  check(true, {
                  {"5|string", "5"},
                  {"none|string", "None"},
                  {"[1, 'a']|string", "[1, 'a']"},
                  {"missing|string", ""},
              });
}

TEST(JinjaTextFilters, Title) {
  check(true, {
                  {"'hello wORLD-foo (bar) they\\'re'|title", "Hello World-Foo (Bar) They're"},
                  {"'\303\237x \307\206'|title", "SSx \307\204"},
              });
}

TEST(JinjaTextFilters, Trim) {
  check(true, {
                  {"'  a '|trim", "a"},
                  {"'xax'|trim('x')", "a"},
                  {"5|trim", "5"},
              });
}

TEST(JinjaTextFilters, Truncate) {
  check(true, {
                  {"'foo bar baz qux'|truncate(9)", "foo..."},
                  {"'foo bar baz qux'|truncate(9, true)", "foo ba..."},
                  {"'foo bar baz qux'|truncate(11)", "foo bar baz qux"},
                  {"'foo bar baz qux'|truncate(11, false, '...', 0)", "foo bar..."},
                  {"'abc'|truncate(2)", kFails},
              });
}

TEST(JinjaTextFilters, Urlencode) {
  check(true, {
                  {"'a b/c?\303\251'|urlencode", "a%20b/c%3F%C3%A9"},
                  {"{'a b': 'c/d', 'e': 1}|urlencode", "a+b=c%2Fd&e=1"},
                  {"[('x', 1)]|urlencode", "x=1"},
                  {"[1]|urlencode", kFails},
                  {"5|urlencode", "5"},
              });
}

TEST(JinjaTextFilters, Wordcount) {
  check(true, {
                  {"'one two-three, vier_f\303\274nf'|wordcount", "4"},
                  {"''|wordcount", "0"},
              });
}

TEST(JinjaTextFilters, Xmlattr) {
  check(true, {
                  {"{'a': '<', 'b': none, 'c': 1}|xmlattr", " a=\"&lt;\" c=\"1\""},
                  {"{'a': 1}|xmlattr(false)", "a=\"1\""},
                  {"{'a b': 1}|xmlattr", kFails},
                  {"5|xmlattr", kFails},
              });
}

}  // namespace
}  // namespace nanovllm::jinja
