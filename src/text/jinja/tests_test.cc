// Every test of `is`.
#include <gtest/gtest.h>

#include "text/jinja/table_testing.h"

namespace nanovllm::jinja {
namespace {

TEST(JinjaTests, Types) {
  check(true, {
                  {"n is number", "True"},
                  {"1.5 is number", "True"},
                  {"true is number", "True"},
                  {"s is number", "False"},
                  {"n is integer", "True"},
                  {"true is integer", "False"},
                  {"1.5 is float", "True"},
                  {"s is string", "True"},
                  {"('a'|safe) is string", "True"},
                  {"none is none", "True"},
                  {"d is mapping", "True"},
                  {"l is mapping", "False"},
                  {"true is boolean", "True"},
                  {"1 is boolean", "False"},
                  {"true is true", "True"},
                  {"1 is true", "False"},
                  {"false is false", "True"},
                  {"0 is false", "False"},
              });
}

TEST(JinjaTests, Containers) {
  check(true, {
                  {"l is sequence", "True"},
                  {"s is sequence", "True"},
                  {"d is sequence", "True"},
                  {"range(2) is sequence", "True"},
                  {"d.items() is sequence", "False"},
                  {"5 is sequence", "False"},
                  {"missing is sequence", "True"},
                  {"l is iterable", "True"},
                  {"5 is iterable", "False"},
                  {"(l|map('abs')) is iterable", "True"},
                  {"missing is iterable", "True"},
                  {"d.keys() is iterable", "True"},
              });
}

TEST(JinjaTests, Defined) {
  check(true, {
                  {"missing is defined", "False"},
                  {"missing is undefined", "True"},
                  {"s is defined", "True"},
                  {"d.x is defined", "False"},
                  {"d.x is not defined", "True"},
                  {"missing.x is defined", kFails},
                  {"none is defined", "True"},
              });
}

TEST(JinjaTests, Numbers) {
  check(true, {
                  {"3 is odd", "True"},
                  {"4 is even", "True"},
                  {"9 is divisibleby 3", "True"},
                  {"9 is divisibleby(2)", "False"},
                  {"9 is divisibleby(0)", kFails},
              });
}

TEST(JinjaTests, Comparisons) {
  check(true, {
                  {"n is eq 7", "True"},
                  {"n is equalto(7)", "True"},
                  {"n is ne 7", "False"},
                  {"n is gt 6", "True"},
                  {"n is greaterthan 7", "False"},
                  {"n is ge 7", "True"},
                  {"n is lt 7", "False"},
                  {"n is lessthan 8", "True"},
                  {"n is le 7", "True"},
                  {"n is eq '7'", "False"},
                  {"n is in [7]", "True"},
                  {"'a' is in 'abc'", "True"},
                  {"1 is in 'abc'", kFails},
              });
}

TEST(JinjaTests, Others) {
  check(true, {
                  {"'abc' is lower", "True"},
                  {"'ABC' is upper", "True"},
                  {"'Abc' is lower", "False"},
                  {"n is sameas n", "True"},
                  {"none is sameas none", "True"},
                  {"l is sameas l", "True"},
                  {"[1] is sameas [1]", "False"},
                  {"range is callable", "True"},
                  {"s is callable", "False"},
                  {"missing is callable", "True"},
                  {"n is nope", kFails},
                  {"not n is odd", "False"},
                  {"n is not odd", "False"},
                  {"n is odd is even", kFails},
              });
}

}  // namespace
}  // namespace nanovllm::jinja
