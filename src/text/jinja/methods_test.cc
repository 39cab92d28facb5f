// Every method of strings and containers, and both kinds of string formatting.
#include <gtest/gtest.h>

#include "text/jinja/table_testing.h"

namespace nanovllm::jinja {
namespace {

TEST(JinjaMethods, Case) {
  check(true, {
                  {"'heLLO wORLD'.capitalize()", "Hello world"},
                  {"'Stra\303\237e'.upper()", "STRASSE"},
                  {"'\304\260\316\221\316\243'.lower()", "i\314\207\316\261\317\202"},
                  {"'\357\254\201x'.title()", "Fix"},
                  {"\"they're\".title()", "They'Re"},
                  {"'aB'.swapcase()", "Ab"},
                  {"'Stra\303\237e'.casefold()", "strasse"},
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
                  {"'a,b,c'.rsplit(',', 1)", "['a,b', 'c']"},
                  {"' a b c '.split(none, 1)", "['a', 'b c ']"},
                  {"' a b c '.rsplit(none, 1)", "[' a b', 'c']"},
                  {"'a'.split('')", kFails},
                  {"''.split()", "[]"},
                  {"''.split(',')", "['']"},
                  {"'a,b'.split(sep=',', maxsplit=-1)", "['a', 'b']"},
                  {"'a'.split(1)", kFails},
              });
}

TEST(JinjaMethods, Splitlines) {
  check(true, {
                  {"'a\\nb\\r\\nc\\x0bd\\u2028e\\n'.splitlines()", "['a', 'b', 'c', 'd', 'e']"},
                  {"'a\\r\\nb'.splitlines(true)", "['a\\r\\n', 'b']"},
                  {"''.splitlines()", "[]"},
                  {"'a\\n\\nb'.splitlines(keepends=false)", "['a', '', 'b']"},
              });
}

TEST(JinjaMethods, Partition) {
  check(true, {
                  {"'a-b-c'.partition('-')", "('a', '-', 'b-c')"},
                  {"'a-b-c'.rpartition('-')", "('a-b', '-', 'c')"},
                  {"'abc'.partition('-')", "('abc', '', '')"},
                  {"'abc'.rpartition('-')", "('', '', 'abc')"},
                  {"'a'.partition('')", kFails},
              });
}

TEST(JinjaMethods, StartsAndEndsWith) {
  check(true, {
                  {"s.startswith('He')", "True"},
                  {"s.startswith(('x', 'He'))", "True"},
                  {"s.startswith('World', 6)", "True"},
                  {"s.startswith('lo', 3, 5)", "True"},
                  {"s.startswith(['He'])", kFails},
                  {"s.endswith('ld')", "True"},
                  {"s.endswith(('x', 'd'))", "True"},
                  {"s.endswith('Hello', 0, 5)", "True"},
                  {"s.startswith('', 99)", "False"},
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
                  {"'\303\244b\303\244'.find('\303\244', 1)", "2"},
                  {"'\303\244b\303\244'.rfind('\303\244')", "2"},
                  {"'abc'.find('x')", "-1"},
                  {"'abc'.index('c')", "2"},
                  {"'abc'.index('x')", kFails},
                  {"'abcabc'.rindex('b')", "4"},
                  {"'abab'.count('ab')", "2"},
                  {"'ab'.count('')", "3"},
                  {"'\303\244b\303\244b'.count('b', 2)", "1"},
                  {"'abc'.find('', 3)", "3"},
                  {"'abc'.find('', 4)", "-1"},
                  {"'abc'.find('c', -1)", "2"},
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

TEST(JinjaMethods, Pad) {
  check(true, {
                  {"'ab'.center(5, '*')", "**ab*"},
                  {"'ab'.center(6)", "  ab  "},
                  {"'\303\244b'.ljust(4, '.')", "\303\244b.."},
                  {"'ab'.rjust(4)", "  ab"},
                  {"'-42'.zfill(6)", "-00042"},
                  {"'ab'.zfill(4)", "00ab"},
                  {"'a'.center(3, 'xy')", kFails},
                  {"'a\\tb'.expandtabs(4)", "a   b"},
                  {"'a\\n\\tb'.expandtabs()", "a\n        b"},
              });
}

TEST(JinjaMethods, Predicates) {
  check(true, {
                  {"'abc'.isalpha()", "True"},        {"'ab1'.isalpha()", "False"},
                  {"'ab1'.isalnum()", "True"},        {"'12'.isdigit()", "True"},
                  {"'\302\262'.isdigit()", "True"},   {"'\302\262'.isdecimal()", "False"},
                  {"'\302\275'.isnumeric()", "True"}, {"' \\t'.isspace()", "True"},
                  {"''.isspace()", "False"},          {"'aB'.islower()", "False"},
                  {"'\302\252'.islower()", "True"},   {"'AB1'.isupper()", "True"},
                  {"'Ab Cd'.istitle()", "True"},      {"'AB'.istitle()", "False"},
                  {"'a_1'.isidentifier()", "True"},   {"'1a'.isidentifier()", "False"},
                  {"'\303\251'.isascii()", "False"},  {"'a\\n'.isprintable()", "False"},
                  {"''.isprintable()", "True"},       {"''.isprintable(1)", kFails},
              });
}

TEST(JinjaMethods, Affixes) {
  check(true, {
                  {"'Hello'.removeprefix('He')", "llo"},
                  {"'Hello'.removesuffix('lo')", "Hel"},
                  {"'Hello'.removeprefix('x')", "Hello"},
              });
}

TEST(JinjaMethods, Format) {
  check(true, {
                  {"'{} {}'.format(1, 'a')", "1 a"},
                  {"'{1}{0}'.format('a', 'b')", "ba"},
                  {"'{x.a} {y[0]}'.format(x={'a': 1}, y=[2])", "1 2"},
                  {"'{:>6.2f}|{:<4}|{:^5}'.format(3.14159, 'a', 'b')", "  3.14|a   |  b  "},
                  {"'{:,} {:_} {:08.3f} {:+d} {:x} {:#X} {:b} {:e} {:%}'.format(1234567, 1234567, "
                   "3.14159, 5, 255, 255, 5, 12345.678, 0.25)",
                   "1,234,567 1_234_567 0003.142 +5 ff 0XFF 101 1.234568e+04 25.000000%"},
                  {"'{!r:>5}'.format('a')", "  'a'"},
                  {"'{{}}'.format()", "{}"},
                  {"'{:{}}'.format('a', 3)", "a  "},
                  {"'{'.format()", kFails},
                  {"'{} {0}'.format(1)", kFails},
                  {"'{x}'.format()", kFails},
                  {"'{:d}'.format('a')", kFails},
                  {"'{x}'.format_map({'x': 1})", "1"},
                  {"'{:.3} {:.1} {}'.format('abcdef', 2.55, 1e16)", "abc 3e+00 1e+16"},
                  {"'{:012,}'.format(1234567)", "0,001,234,567"},
                  {"'{.upper}'.format('a')", kFails},
              });
}

TEST(JinjaMethods, Percent) {
  check(true,
        {
            {"'%s %r' % ('a', 'b')", "a 'b'"},
            {"'%5d|%-5d|%05d|%+d|% d' % (42, 42, 42, 42, 42)", "   42|42   |00042|+42| 42"},
            {"'%x %X %#x %o %#o' % (255, 255, 255, 8, 8)", "ff FF 0xff 10 0o10"},
            {"'%.2f %e %g %G' % (3.14159, 1234.5, 0.00001, 1e20)", "3.14 1.234500e+03 1e-05 1E+20"},
            {"'%c%c' % ('a', 98)", "ab"},
            {"'%%' % ()", "%"},
            {"'%(a)s %(b)03d' % {'a': 1, 'b': 2}", "1 002"},
            {"'%s' % [1, 2]", "[1, 2]"},
            {"'%s %s' % (1,)", kFails},
            {"'%s' % (1, 2)", kFails},
            {"'%d' % 'a'", kFails},
            {"'%d' % 3.9", "3"},
            {"'%.3s|%5.1s' % ('abcdef', 'xyz')", "abc|    x"},
            {"'%*d' % (5, 42)", "   42"},
            {"'%y' % 1", kFails},
            {"'%(a)s' % 1", kFails},
            {"'abc' % 1", kFails},
            {"'%s' % missing", ""},
            {"'%.5d' % -42", "-00042"},
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
                  {"d.copy() == d", "True"},
                  {"d.fromkeys([1, 2], 'x')", "{1: 'x', 2: 'x'}"},
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
                  {"l.index(1)", "1"},
                  {"l.index(9)", kFails},
                  {"l.count(3)", "1"},
                  {"l.copy()", "[3, 1, 2]"},
                  {"l.append(1)", kFails},
                  {"l.pop()", kFails},
                  {"l.extend([])", kFails},
                  {"l.insert(0, 1)", kFails},
                  {"l.remove(1)", kFails},
                  {"l.reverse()", kFails},
                  {"l.sort()", kFails},
                  {"l.clear()", kFails},
                  {"(1, 2).index(2)", "1"},
                  {"(1, 1).count(1)", "2"},
                  {"(1).append", ""},
              });
}

TEST(JinjaMethods, Others) {
  check(true, {
                  {"range(1, 9, 2).index(5)", "2"},
                  {"range(3).count(1)", "1"},
                  {"range(1, 9, 2).stop", "9"},
                  {"(5).bit_length()", "3"},
                  {"(5).real", "5"},
                  {"2.0.is_integer()", "True"},
                  {"2.5.is_integer()", "False"},
                  {"dict.fromkeys('ab')", "{'a': None, 'b': None}"},
              });
}

}  // namespace
}  // namespace nanovllm::jinja
