// What Jinja has and this engine does not is refused when a template is compiled, wherever it
// stands in it, by name and with its place.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "text/jinja/testing.h"

namespace nanovllm::jinja {
namespace {

void expect_refused(std::string_view source, std::string_view what, std::string_view name) {
  EXPECT_THROW(Program{std::string(source)}, Error) << source;
  const std::string message = error_of(source);
  EXPECT_TRUE(message.starts_with("chat template, line 2, column ")) << message;
  EXPECT_TRUE(message.ends_with(fmt::format(": {} '{}' is not supported", what, name))) << message;
}

TEST(JinjaRefused, Statements) {
  for (const char* tag : {"autoescape", "block", "call", "do", "extends", "from", "import",
                          "include", "print", "raw", "trans", "with"}) {
    expect_refused(fmt::format("{{% if false %}}\n{{% {} x %}}{{% endif %}}", tag), "the statement",
                   tag);
  }
  expect_refused("\n{% for x in y recursive %}{% endfor %}", "the loop's marker", "recursive");
}

TEST(JinjaRefused, Filters) {
  for (const char* name :
       {"attr", "batch",    "center",    "filesizeformat", "format",    "forceescape", "groupby",
        "max",  "min",      "pprint",    "random",         "round",     "slice",       "striptags",
        "sum",  "truncate", "urlencode", "urlize",         "wordcount", "wordwrap",    "xmlattr"}) {
    expect_refused(fmt::format("{{{{ 1 if true else\nx|{} }}}}", name), "the filter", name);
  }
  EXPECT_EQ(error_of("{{ [1]|map('round') }}"),
            "chat template, line 1, column 8: the filter 'round' is not supported");
}

TEST(JinjaRefused, Tests) {
  for (const char* name : {"escaped", "filter", "test"}) {
    expect_refused(fmt::format("{{{{ true or\nx is not {} }}}}", name), "the test", name);
  }
}

TEST(JinjaRefused, NamesThatTheTemplateDoesNotSet) {
  for (const char* name : {"caller", "cycler", "joiner", "kwargs", "lipsum", "self", "varargs"}) {
    expect_refused(fmt::format("{{% macro m() %}}\n{{{{ {}() }}}}{{% endmacro %}}", name),
                   "the name", name);
    EXPECT_EQ(render(fmt::format("{{% set {0} = 1 %}}{{{{ {0} }}}}", name)), "1");
  }
}

TEST(JinjaRefused, Methods) {
  for (const char* name :
       {"bit_length", "casefold", "center",     "changed",      "copy",       "conjugate",
        "cycle",      "encode",   "expandtabs", "format",       "format_map", "fromkeys",
        "is_integer", "isascii",  "isdecimal",  "isidentifier", "isnumeric",  "isprintable",
        "istitle",    "ljust",    "maketrans",  "partition",    "rfind",      "rindex",
        "rpartition", "rsplit",   "splitlines", "rjust",        "swapcase",   "translate",
        "zfill"}) {
    expect_refused(fmt::format("{{{{ false and\nx.{}(1) }}}}", name), "the method", name);
    // Without a call it can be a member of a tool's description.
    EXPECT_EQ(render(fmt::format("{{{{ x.{} }}}}", name), {{"x", {{name, 5}}}}), "5");
  }
}

TEST(JinjaRefused, Others) {
  expect_refused("\n{{ f(**x) }}", "the argument", "**kwargs");
  expect_refused("\n{{ x[1, 2] }}", "an index of several items, as in", "x[1, 2]");
  EXPECT_EQ(error_of("{{ '%s' % 1 }}"),
            "chat template, line 1, column 9: the operator '%' of strings is not supported");
  EXPECT_EQ(error_of("{{ x % 1 }}", {{"x", "%s"}}),
            "chat template, line 1, column 6: the operator '%' of strings is not supported");
  EXPECT_EQ(
      error_of("{{ 0x1F }}"),
      "chat template, line 1, column 4: this number is not supported: only decimal digits can "
      "be in one");
  EXPECT_EQ(error_of("{{ '\\N{DASH}' }}"),
            "chat template, line 1, column 4: a backslash before N, a digit or no ASCII "
            "character is not supported in a string");
}

}  // namespace
}  // namespace nanovllm::jinja
