// Tables of expressions or templates with the text that Jinja2 3.1 on Python 3.11 renders.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/jinja/testing.h"

namespace nanovllm::jinja {

// Stands for "Jinja2 raises".
inline constexpr const char* kFails = "(fails)";

struct Case {
  std::string source;
  std::string expected;
};

inline const Json& table_variables() {
  static const Json kVariables = {{"users",
                                   {{{"name", "Zoe"}, {"age", 30}},
                                    {{"name", "adam"}, {"age", 25}},
                                    {{"name", "Bob"}, {"age", 30}, {"tags", {"x"}}}}},
                                  {"d", {{"b", 1}, {"a", 2}, {"C", 3}}},
                                  {"l", {3, 1, 2}},
                                  {"s", "Hello World"},
                                  {"n", 7}};
  return kVariables;
}

inline void check(bool is_expression, const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    const std::string source = is_expression ? "{{ " + one.source + " }}" : one.source;
    std::string actual;
    try {
      actual = render(source, table_variables());
    } catch (const Error& error) {
      EXPECT_EQ(one.expected, kFails) << source << "\n" << error.what();
      continue;
    }
    EXPECT_EQ(actual, one.expected) << source;
  }
}

}  // namespace nanovllm::jinja
