// Statements, expressions, scopes and white space.
#include <gtest/gtest.h>

#include "text/jinja/table_testing.h"

namespace nanovllm::jinja {
namespace {

TEST(JinjaLanguage, Numbers) {
  check(false,
        {
            {"{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % -3 }} {{ -7 % 3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}",
             "3 -4 -2 2 3.0 0.5"},
            {"{{ 7 / 2 }} {{ 6 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }}",
             "3.5 3.0 1024 0.5 4 64"},
            {"{{ 1 / 0 }}", kFails},
            {"{{ 1 // 0 }}", kFails},
            {"{{ 1.0 % 0 }}", kFails},
            {"{{ 0.0 ** -1 }}", kFails},
            {"{{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e15 }} {{ 1e-5 }} {{ 0.0001 }} {{ 123456789.125 }} {{ "
             "-0.0 }}",
             "0.30000000000000004 1e+16 1000000000000000.0 1e-05 0.0001 123456789.125 -0.0"},
            {"{{ true + 1 }} {{ -true }} {{ +false }}", "2 -1 0"},
            {"{{ 012 }}", kFails},
            {"{{ 1 + 'a' }}", kFails},
        });
}

TEST(JinjaLanguage, Comparisons) {
  check(false,
        {
            {"{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 == 1.0 == true }}", "True False True"},
            {"{{ [1, 2] < [1, 3] }} {{ (1,) < (1, 0) }} {{ 'a' < 'b' }}", "True True True"},
            {"{{ {} == {} }} {{ {'a': [1]} == {'a': [1.0]} }} {{ [1] == (1,) }} {{ range(0) == "
             "range(5, 1) }}",
             "True True False True"},
            {"{{ 2 in l }} {{ 9 not in l }} {{ 'ell' in s }} {{ 'a' in d }} {{ 2 in range(0, 9, 2) "
             "}}",
             "True True True True True"},
            {"{{ 1 in 'abc' }}", kFails},
            {"{{ 1 in 5 }}", kFails},
            {"{{ missing == missing }} {{ missing in l }} {{ 1 in missing }}", "True False False"},
            {"{{ missing < 1 }}", kFails},
        });
}

TEST(JinjaLanguage, Logic) {
  check(
      false,
      {
          {"{{ 0 or 'a' }}{{ 1 and 'b' }}{{ '' and 1 }}|{{ not [] }}{{ not 'x' }}", "ab|TrueFalse"},
          {"{{ 1 if true }}{{ 1 if false }}{{ 1 if false else 2 if false else 3 }}", "13"},
          {"{{ false and raise_exception('x') }}{{ true or raise_exception('x') }}", "FalseTrue"},
          {"{{ (1 if false).x }}", kFails},
      });
}

TEST(JinjaLanguage, Undefined) {
  check(false,
        {
            {"{{ missing }}|{{ missing ~ 'a' }}|{{ missing|length }}|{% if missing %}{% endif %}",
             "|a|0|"},
            {"{{ missing.x }}", kFails},
            {"{{ missing['x'] }}", kFails},
            {"{{ missing() }}", kFails},
            {"{{ missing + 1 }}", kFails},
            {"{{ -missing }}", kFails},
            {"{% for x in missing %}{{ x }}{% else %}empty{% endfor %}", "empty"},
            {"{{ d.nope }}|{{ l[9] }}|{{ s.nope }}|{{ none.x }}|{{ l['a'] }}|{{ d[[]] }}", "|||||"},
            {"{{ d.nope.deeper }}", kFails},
        });
}

TEST(JinjaLanguage, Sandbox) {
  check(false,
        {
            {"{{ ''.__class__ }}", ""},
            {"{{ ''.__class__.x }}", kFails},
            {"{{ ''.__class__() }}", kFails},
            {"{{ d.update(a=1) }}", kFails},
            {"{{ l.append is defined }}", "False"},
            {"{{ range(100000)|length }}", "100000"},
            {"{{ range(-9223372036854775807, 9223372036854775807, 4611686018427387904)[1:]"
             "|list }}",
             "[-4611686018427387903, 1, 4611686018427387905]"},
            {"{{ range(0, 9, 4)[::9223372036854775807]|list }}", "[0]"},
            {"{{ range(-9, -9223372036854775807, -9223372036854775806)[:1:9]|list }}", "[-9]"},
            {"{{ range(0, 9223372036854775807, 9223372036854775806)[:2]|list }}",
             "[0, 9223372036854775806]"},
            {"{{ range(1, 9, 3)[::9223372036854775807]|list }}", "[1]"},
            {"{{ range(100001) }}", kFails},
            {"{% set ns = namespace(_a=1) %}", kFails},
            {"{% set ns = namespace() %}{% set ns._a = 1 %}", kFails},
        });
}

TEST(JinjaLanguage, Slices) {
  check(
      false,
      {
          {"{{ s[1:4] }}|{{ s[::-1] }}|{{ s[-3:] }}|{{ s[:99] }}|{{ s[9:2:-3] }}|{{ "
           "'\303\244\303\266\303\274\360\237\221\213'[1:3] }}|{{ "
           "'\303\244\303\266\303\274\360\237\221\213'[::-1] }}|{{ "
           "'\303\244\303\266\303\274\360\237\221\213'[-1] }}",
           "ell|dlroW olleH|rld|Hello "
           "World|lWl|\303\266\303\274|\360\237\221\213\303\274\303\266\303\244|\360\237\221\213"},
          {"{{ l[1:] }}{{ l[::2] }}{{ l[-99:1] }}{{ (1, 2, 3)[::-1] }}{{ range(9)[2:7:2]|list }}{{ "
           "l[none:none] }}",
           "[1, 2][3, 2][3](3, 2, 1)[2, 4, 6][3, 1, 2]"},
          {"{{ s[::0] }}", kFails},
          {"{{ s['a':] }}", kFails},
          {"{{ d[1:] }}", kFails},
          {"{{ missing[1:] }}", kFails},
          {"{{ s[::9223372036854775807] }}{{ s[::-9223372036854775807] }}", "Hd"},
      });
}

TEST(JinjaLanguage, Literals) {
  check(false, {
                   {"{{ [1, 'a', none, true, 1.5, (1,), (), {}, {'k': \"it's\"}] }}",
                    "[1, 'a', None, True, 1.5, (1,), (), {}, {'k': \"it's\"}]"},
                   {"{{ {1: 'a', true: 'b', 'x': 'c', none: 1} }}", "{1: 'b', 'x': 'c', None: 1}"},
                   {"{{ 'a' 'b' ~ \"c\" }}", "abc"},
                   {"{{ '\\x4' }}", kFails},
                   {"{{ {[]: 1} }}", kFails},
                   {"{{ ['\\n\\t\\\\\\x00\\x7f\\u200b', '\\u00e9'] }}",
                    "['\\n\\t\\\\\\x00\\x7f\\u200b', '\303\251']"},
                   {"{{ 1, 2 }}", "(1, 2)"},
                   {"{{ (1) }}{{ (1,) }}", "1(1,)"},
               });
}

TEST(JinjaLanguage, Whitespace) {
  check(false, {
                   {"  {% if true %}\n  a\n  {% endif %}\nb\n", "  a\nb"},
                   {"  {%+ if true %}\na\n  {%- endif +%}\nb", "  a\nb"},
                   {"a  {{- 1 -}}  b", "a1b"},
                   {"a\n  {# c #}\n  b", "a\n  b"},
                   {"x {% if true %} y {% endif %}\nz", "x  y z"},
                   {"{% if true -%}\n\n a {%- endif %}", "a"},
                   {"a\r\nb\rc\r\n", "a\nb\nc"},
                   {"a\n\n", "a\n"},
                   {"{{ '{{' }}{{ \"%}\" }}{{ {'a': {}} }}", "{{%}{'a': {}}"},
                   {"{#- a -#} b {#- c -#}", "b"},
                   {"\343\200\200{%- if true %}x{% endif -%}\302\240y", "xy"},
               });
}

TEST(JinjaLanguage, For) {
  check(
      false,
      {
          {"{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ "
           "loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ "
           "loop.depth }}{{ loop.depth0 }} {% endfor %}",
           "1032TrueFalse310 2121FalseFalse310 3210FalseTrue310 "},
          {"{% for i in l %}[{{ loop.previtem }}{{ i }}{{ loop.nextitem }}]{{ "
           "loop.length }}{% endfor %}",
           "[31]3[312]3[12]3"},
          {"{% for i in l if i != 1 %}{{ loop.length }}{{ loop.revindex }}{{ loop.last }}{{ "
           "loop.nextitem }} {% endfor %}",
           "22False2 21True "},
          {"{% set ns = namespace(go=true) %}{% for i in l if ns.go %}{{ i }}{% set ns.go = "
           "false %}{% endfor %}",
           "3"},
          {"{% for i in l if i > 1 %}{{ loop.index }}:{{ i }}{% else %}none{% endfor %}", "1:32:2"},
          {"{% for i in l if i > 9 %}x{% else %}none{% endfor %}", "none"},
          {"{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %}{% for (a, b), c in "
           "[((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
           "b1a2C3123"},
          {"{% for a, b in [[1]] %}{% endfor %}", kFails},
          {"{% for a, b in [1] %}{% endfor %}", kFails},
          {"{% for i in 5 %}{% endfor %}", kFails},
          {"{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% if i == 2 "
           "%}{% break %}{% endif %}{% endfor %}",
           "32"},
          {"{% for i in l %}{% continue %}{% else %}counts as empty{% endfor %}",
           "counts as empty"},
          {"{% for x in l %}{{ loop(l) }}{% endfor %}", kFails},
          {"{% for i in l|map('abs') %}{{ loop.length }}{{ loop.last }}{{ loop.revindex "
           "}}{% endfor %}",
           "3False33False23True1"},
          {"{% break %}", kFails},
          {"{% for loop in l %}{% endfor %}", kFails},
          {"{% for a, (b, loop) in l %}{% endfor %}", kFails},
          {"{% for (a.b, c) in l %}{% endfor %}", kFails},
          {"{% for 'a' in l %}{% endfor %}", kFails},
          {"{% for a in l %}{% for b in l %}{% if loop.first %}{{ loop.index }}{% endif "
           "%}{% endfor %}{{ loop.index }}{% endfor %}",
           "111213"},
          {"{% for i in l %}{% macro m() %}{{ loop.index }}{{ i }}{% endmacro %}{{ m() "
           "}}{% endfor %}",
           "132132"},
      });
}

TEST(JinjaLanguage, Set) {
  check(
      false,
      {
          {"{% set a, b = 1, 2 %}{{ b }}{{ a }}{% set a, b = b, a %}{{ b }}{{ a }}", "2112"},
          {"{% set x %}a{{ n }}{% endset %}{{ x }}{{ x is string }}", "a7True"},
          {"{% set x|upper|replace('A', 'c') %}ab{% endset %}{{ x }}", "cB"},
          {"{% set x = 0 %}{% for i in l %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}", "3120"},
          {"{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ "
           "ns.x }}{{ ns.y }}",
           "6"},
          {"{% set d.x = 1 %}", kFails},
          {"{% set x = x %}{{ x }}", ""},
          {"{% if true %}{% set y = 1 %}{% endif %}{{ y }}{% if false %}{% set z = 1 %}{% endif "
           "%}{{ z }}{{ s }}",
           "1Hello World"},
          {"{% if n %}{% set s = 'new' %}{% endif %}{{ s }}", "new"},
          {"{% for i in [1, 2] %}{{ q }}{% set q = i %}{{ q }}{% endfor %}{{ q }}", "12"},
          {"{% set 1 = 2 %}", kFails},
          {"{% set none = 2 %}", kFails},
          {"{% set (a, (b, true)) = 2 %}", kFails},
          {"{% set ns = namespace() %}{% set ns.x, b = 1, 2 %}{{ ns.x }}{{ b }}", "12"},
          {"{% set ns = namespace() %}{% set (ns.x, b) = 1, 2 %}", kFails},
          {"{% set () = [] %}x", "x"},
          {"{% set a, = [1] %}", kFails},
          {"{% set ns = namespace() %}{% set ns.x.y = 1 %}", kFails},
          {"{{ s }}{% set s = 2 %}{{ s }}{% macro m() %}{{ s }}{% endmacro %}{% set s = 3 %}{{ m() "
           "}}",
           "Hello World23"},
      });
}

TEST(JinjaLanguage, Macros) {
  check(
      false,
      {
          {"{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, c=3) "
           "}}{{ m() }}{{ m(b=1, a=5) }}",
           "121;123;2;515;"},
          {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", kFails},
          {"{% macro m(a) %}{% endmacro %}{{ m(z=1) }}", kFails},
          {"{% macro m(a) %}{% endmacro %}{{ m(1, a=1) }}", kFails},
          {"{% macro m(a, a) %}{% endmacro %}", kFails},
          {"{% macro m(a=1, b) %}{% endmacro %}", kFails},
          {"{% macro f(k) %}{{ k }}{% if k > 0 %}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
           "3210"},
          {"{{ dict(a=1, a=2) }}", kFails},
          {"{% macro m() %}{% macro k() %}in{% endmacro %}{{ k() }}{% endmacro %}{{ m() }}{{ k }}",
           "in"},
      });
}

TEST(JinjaLanguage, Blocks) {
  check(false,
        {
            {"{% filter upper %}a{{ s }}{% endfilter %}", "AHELLO WORLD"},
            {"{% generation %}{% set q = n %}{{ q }}{% endgeneration %}{{ q }}", "7"},
            {"{{ raise_exception('no') }}", kFails},
            {"{% set g = l|map('abs') %}{{ g|list }}{{ g|list }}", "[3, 1, 2][]"},
            {"{% if [1]|select('gt', 2) %}generators are true{% endif %}", "generators are true"},
            {"{% nope %}", kFails},
            {"{% if true %}", kFails},
            {"{% endif %}", kFails},
            {"{{ 1 2 }}", kFails},
            {"{{ 'a }}", kFails},
            {"{{ (1 }}", kFails},
            {"{{ a & b }}", kFails},
            {"{# open", kFails},
            {"{{ x is is y }}", kFails},
            {"{{ l[1:2, 3] }}", kFails},
        });
}

}  // namespace
}  // namespace nanovllm::jinja
