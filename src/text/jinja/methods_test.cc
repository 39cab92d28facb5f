// Every method of strings and containers, and both kinds of string formatting.
#include <gtest/gtest.h>

#include "text/jinja/table_testing.h"

namespace nanovllm::jinja {
namespace {

TEST(JinjaMethods, Case) {
  check(true, {
                  {"'heLLO wORLD'.capitalize()", "Hello world"},
                  {"'Stra\303\237e'.upper()", "STRASSE"},
                  {"'\304\260A'.lower()", "i\314\207a"},
                  {"\"they're\".title()", "They'Re"},
                  {"'a'.upper(1)", kFails},
              });
}

TEST(JinjaMethods, Strip) {
  check(true, {
                  {"'  a \\n'.strip()", "a"},
                  {"'  a '.lstrip()", "a "},
                  {"'  a '.rstrip()", "  a"},
                  {"'xyaxy'.strip('yx')", "a"},
                  {"'\303\244a\303\244'.strip('\303\244')", "a"},
                  {"'a'.strip(none)", "a"},
                  {"'a'.strip(1)", kFails},
                  {"'a'.strip(chars='a')", kFails},
                  {"'\\u3000a\\u00a0'.strip()", "a"},
              });
}

TEST(JinjaMethods, Split) {
  check(true, {
                  {"' a  b '.split()", "['a', 'b']"},
                  {"'a,b,c'.split(',')", "['a', 'b', 'c']"},
                  {"'a,b,c'.split(',', 1)", "['a', 'b,c']"},
                  {"' a b c '.split(none, 1)", "['a', 'b c ']"},
                  {"'a'.split('')", kFails},
                  {"''.split()", "[]"},
                  {"''.split(',')", "['']"},
                  {"'a,b'.split(sep=',', maxsplit=-1)", "['a', 'b']"},
                  {"'a'.split(1)", kFails},
              });
}

TEST(JinjaMethods, StartsAndEndsWith) {
  check(true, {
                  {"s.startswith('He')", "True"},
                  {"s.startswith(('x', 'He'))", "True"},
                  {"s.startswith(['He'])", kFails},
                  {"s.endswith('ld')", "True"},
                  {"s.endswith(('x', 'd'))", "True"},
                  {"s.startswith(1)", kFails},
              });
}

TEST(JinjaMethods, Replace) {
  check(true, {
                  {"'aaa'.replace('a', 'b')", "bbb"},
                  {"'aaa'.replace('a', 'b', 2)", "bba"},
                  {"'\303\244b'.replace('', '-')", "-\303\244-b-"},
                  {"'aaa'.replace('a', 'b', count=1)", kFails},
                  {"'a'.replace('a', 1)", kFails},
              });
}

TEST(JinjaMethods, Find) {
  check(true, {
                  {"'abc'.find('x')", "-1"},
                  {"'abc'.index('c')", "2"},
                  {"'abc'.index('x')", kFails},
                  {"'abab'.count('ab')", "2"},
                  {"'ab'.count('')", "3"},
              });
}

TEST(JinjaMethods, Join) {
  check(true, {
                  {"', '.join(['a', 'b'])", "a, b"},
                  {"''.join('abc')", "abc"},
                  {"','.join(d)", "b,a,C"},
                  {"','.join([1])", kFails},
                  {"','.join(5)", kFails},
              });
}

TEST(JinjaMethods, Affixes) {
  check(true, {
                  {"'Hello'.removeprefix('He')", "llo"},
                  {"'Hello'.removesuffix('lo')", "Hel"},
                  {"'Hello'.removeprefix('x')", "Hello"},
              });
}

TEST(JinjaMethods, Dicts) {
  check(true, {
                  {"d.get('a')", "2"},
                  {"d.get('z')", "None"},
                  {"d.get('z', 0)", "0"},
                  {"d.keys()|list", "['b', 'a', 'C']"},
                  {"d.values()|list", "[1, 2, 3]"},
                  {"d.items()|list", "[('b', 1), ('a', 2), ('C', 3)]"},
                  {"d.keys()", "dict_keys(['b', 'a', 'C'])"},
                  {"d.items()", "dict_items([('b', 1), ('a', 2), ('C', 3)])"},
                  {"d.values()", "dict_values([1, 2, 3])"},
                  {"d.pop('a')", kFails},
                  {"d.update({})", kFails},
                  {"d.clear()", kFails},
                  {"d.setdefault('a')", kFails},
                  {"d.get([])", kFails},
                  {"d.get()", kFails},
                  {"'a' in d.keys()", "True"},
                  {"('a', 2) in d.items()", "True"},
                  {"2 in d.values()", "True"},
                  {"d.get(key='a')", kFails},
              });
}

TEST(JinjaMethods, Lists) {
  check(true, {
                  {"l.index(9)", kFails},
                  {"l.append(1)", kFails},
                  {"l.pop()", kFails},
                  {"l.extend([])", kFails},
                  {"l.insert(0, 1)", kFails},
                  {"l.remove(1)", kFails},
                  {"l.reverse()", kFails},
                  {"l.sort()", kFails},
                  {"l.clear()", kFails},
                  {"(1).append", ""},
              });
}

}  // namespace
}  // namespace nanovllm::jinja
