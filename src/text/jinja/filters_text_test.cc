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

TEST(JinjaTextFilters, Escape) {
  check(true, {
                  {"'<a>&\"\\''|escape", "&lt;a&gt;&amp;&#34;&#39;"},
                  {"'<'|e|e", "&lt;"},
                  {"5|e", "5"},
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
                  {"[('<'|safe)]", "[Markup('<')]"},
                  {"('<>'|safe)|list", "['<', '>']"},
                  {"(','|safe).join(['<'])", "&lt;"},
                  {"('<b>'|safe).replace('b', '<')", "<&lt;>"},
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

}  // namespace
}  // namespace nanovllm::jinja
