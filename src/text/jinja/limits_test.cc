// Every limit on both sides, and templates that are out to crash or hang.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/testing.h"
#include "text/jinja/testing.h"

namespace nanovllm::jinja {
namespace {

std::string repeat(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

RenderOptions with_limits(const Limits& limits) {
  RenderOptions options;
  options.limits = limits;
  return options;
}

// Time is spent on reaching them.
Limits limits_to_reach() {
  Limits limits;
  limits.max_steps /= test::full_or_reduced(1, 20);
  limits.max_live_bytes /= test::full_or_reduced(1, 20);
  return limits;
}

TEST(JinjaLimits, StepsAreCounted) {
  Limits limits;
  limits.max_steps = 1000;
  const auto options = with_limits(limits);
  const std::string loop = "{% for i in range(n) %}{{ i }}{% endfor %}";
  EXPECT_NO_THROW(render(loop, {{"n", 100}}, options));
  EXPECT_TRUE(mentions(error_of(loop, {{"n", 1000}}, options), "more than the 1000 steps allowed"));
}

TEST(JinjaLimits, PathsOfAttributesAreCounted) {
  const std::string message = error_of("{{ ('x' * 9999)|map(attribute='0.0' ~ '.0' * 9999) }}",
                                       Json::object(), with_limits(limits_to_reach()));
  EXPECT_TRUE(mentions(message, "steps allowed")) << message;
}

TEST(JinjaLimits, SearchingAndStrippingTakeLinearTime) {
  const std::string texts =
      "{% set a = 'a' * 1000000 %}{% set b = 'a' * 500000 ~ 'b' %}{% set c = 'b' * 500000 ~ 'a' %}";
  for (const auto& [expression, expected] : {std::pair{"b in a", "False"},
                                             {"a.find(b)", "-1"},
                                             {"a.count(b)", "0"},
                                             {"a.split(b)|length", "1"},
                                             {"a.replace(b, '')|length", "1000000"},
                                             {"a.strip(c)|length", "0"},
                                             {"a|trim(c)|length", "0"}}) {
    EXPECT_EQ(render(fmt::format("{}{{{{ {} }}}}", texts, expression)), expected) << expression;
  }
}

TEST(JinjaLimits, ComparingIsCounted) {
  const std::string texts = "{% set a = 'a' * 9999999 ~ 'a' %}{% set b = 'a' * 9999999 ~ 'a' %}";
  for (const char* expression :
       {"a == b", "a < b", "a in [b]", "{a: 1}[b]", "a.startswith((b, b))"}) {
    const std::string message = error_of(fmt::format(
        "{}{{% for i in range(99999) %}}{{{{ {} }}}}{{% endfor %}}", texts, expression));
    EXPECT_TRUE(mentions(message, "steps allowed")) << expression << ": " << message;
  }
}

TEST(JinjaLimits, NestedLoopsEndInTime) {
  const std::string message =
      error_of("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
               Json::object(), with_limits(limits_to_reach()));
  EXPECT_TRUE(mentions(message, "steps allowed")) << message;
}

TEST(JinjaLimits, OutputIsBounded) {
  Limits limits;
  limits.max_output_bytes = 100;
  const auto options = with_limits(limits);
  EXPECT_EQ(render("{{ 'x' * 100 }}", Json::object(), options).size(), 100U);
  EXPECT_TRUE(mentions(error_of("{{ 'x' * 100 }}y", Json::object(), options),
                       "longer than the 100 bytes allowed"));
}

TEST(JinjaLimits, LiveMemoryIsBoundedAndGivenBack) {
  Limits limits;
  limits.max_live_bytes = 100'000;
  const auto options = with_limits(limits);
  EXPECT_EQ(render("{% set x = 'x' * 90000 %}", Json::object(), options), "");
  EXPECT_TRUE(mentions(error_of("{% set x = 'x' * 110000 %}", Json::object(), options),
                       "more than the 100000 bytes of memory"));
  // Two at a time would be too many, one after the other is not.
  EXPECT_EQ(render("{% for i in range(20) %}{% set x = 'x' * 40000 %}{% endfor %}", Json::object(),
                   options),
            "");
}

TEST(JinjaLimits, AmplificationIsRefusedBeforeItIsDone) {
  for (const char* source :
       {"{{ 'x' * 9223372036854775807 }}", "{{ [1] * 9223372036854775807 }}",
        "{{ 'x'|indent(9223372036854775807, true) }}", "{{ {}|tojson(indent=99999999999) }}",
        "{{ ('x' * 100000).replace('x', 'y' * 100000) }}",
        "{{ ('y' * 100000).join('x' * 100000) }}", "{{ range(0, 9223372036854775807)|list }}",
        "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}"
        "{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}"
        "{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}"
        "{% endfor %}{{ ns.x|tojson }}",
        "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] "
        "%}"
        "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
        "{% set ns = namespace(x=(1,)) %}{% for i in range(99) %}{% set ns.x = (ns.x, ns.x) %}"
        "{% endfor %}{{ {ns.x: 1} }}"}) {
    EXPECT_THROW(render(source, Json::object(), with_limits(limits_to_reach())), Error) << source;
  }
}

TEST(JinjaLimits, MacrosRecurseSoFar) {
  const std::string source =
      "{% macro f(k) %}{% if k > 0 %}{{ f(k - 1) }}{% else %}end{% endif %}{% endmacro %}{{ f(n) "
      "}}";
  EXPECT_EQ(render(source, {{"n", 150}}), "end");
  EXPECT_TRUE(mentions(error_of(source, {{"n", 100000}}), "nest deeper than the 1000 levels"));
  EXPECT_TRUE(mentions(error_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), "1000 levels"));
}

TEST(JinjaLimits, ExpressionsNestSoFar) {
  EXPECT_EQ(render("{{ " + repeat("(", 150) + "1" + repeat(")", 150) + " }}"), "1");
  EXPECT_TRUE(mentions(error_of("{{ " + repeat("(", 250) + "1" + repeat(")", 250) + " }}"),
                       "deeper than the 200 levels"));
  // Chains that need no recursion to be parsed make trees as deep.
  EXPECT_EQ(render("{{ 1" + repeat("+1", 150) + " }}"), "151");
  for (const char* link : {"+1", ".a", "|abs", "[0]", "()", " if 1", " ** 1", " or 1"}) {
    EXPECT_TRUE(mentions(error_of("{{ 1" + repeat(link, 20000) + " }}"), "200 levels")) << link;
  }
  for (const char* opening : {"(", "[", "{1:", "-", "not ", "f(", "a[", "1 if 1 else "}) {
    EXPECT_NE(error_of("{{ " + repeat(opening, 20000)).find("chat template, line 1"),
              std::string::npos)
        << opening;
  }
}

TEST(JinjaLimits, NamedArgumentsAreSoMany) {
  const auto named = [](int count, std::string_view format) {
    std::string out;
    for (int i = 0; i < count; ++i) out += fmt::format(fmt::runtime(format), i);
    return out;
  };
  EXPECT_EQ(render("{% macro m(b" + named(254, ", a{}") + ") %}{% endmacro %}"), "");
  EXPECT_TRUE(mentions(error_of("{% macro m(b" + named(255, ", a{}") + ") %}{% endmacro %}"),
                       "255 parameters at most"));
  EXPECT_EQ(render("{{ dict(" + named(255, "a{}=1, ") + ")|length }}"), "255");
  EXPECT_TRUE(mentions(error_of("{{ dict(" + named(256, "a{}=1, ") + ") }}"), "255 names at most"));
}

// A variable that many others stand before takes more steps to be found.
TEST(JinjaLimits, ScopesWithManyVariablesTakeSteps) {
  std::string sets;
  for (int i = 0; i < 2000; ++i) sets += fmt::format("{{% set a{} = 1 %}}", i);
  Limits limits;
  limits.max_steps = 50'000;
  EXPECT_EQ(render(sets, Json::object(), with_limits(limits)), "");
  EXPECT_TRUE(mentions(
      error_of("{% for i in [1] %}" + sets + "{% endfor %}", Json::object(), with_limits(limits)),
      "steps allowed"));
}

TEST(JinjaLimits, BlocksNestSoFar) {
  const auto nested = [](int levels) {
    return repeat("{% if true %}", levels) + "x" + repeat("{% endif %}", levels);
  };
  EXPECT_EQ(render(nested(100)), "x");
  EXPECT_TRUE(mentions(error_of(nested(101)), "deeper than the 100 levels"));
}

TEST(JinjaLimits, DataNestsSoFar) {
  const auto nested = [](int levels) {
    Json value = 1;
    for (int i = 1; i < levels; ++i) value = Json::array({value});
    return value;
  };
  EXPECT_EQ(render("{{ x|tojson|length > 0 }}", {{"x", nested(500)}}), "True");
  EXPECT_TRUE(mentions(error_of("{{ x }}", {{"x", nested(501)}}), "500 levels"));
  const std::string grow =
      "{% set ns = namespace(x=[]) %}{% for i in range(n) %}{% set ns.x = [ns.x] %}{% endfor %}";
  // The namespace itself is one level.
  EXPECT_EQ(render(grow, {{"n", 498}}), "");
  EXPECT_TRUE(mentions(error_of(grow, {{"n", 499}}), "500 levels"));
}

// Whatever holds a value counts as a level, so that none of these can be freed recursively for
// long.
TEST(JinjaLimits, ChainsOfEveryKindAreBounded) {
  for (const char* link :
       {"(ns.x,)", "{'a': ns.x}", "{'a': ns.x}.items()", "[[ns.x]]|map('list')", "[ns.x]|select",
        "[(ns.x,)]|unique", "{}[(ns.x, 1)]", "[ns.x]|reverse", "{1: ns.x}|items"}) {
    const std::string source =
        "{% set ns = namespace(x=1) %}{% for i in range(50000) %}"
        "{% set ns.x = " +
        std::string(link) + " %}{% endfor %}";
    EXPECT_TRUE(mentions(error_of(source), "500 levels")) << link << ": " << error_of(source);
  }
}

TEST(JinjaLimits, MessagesAreOneLineOfUtf8AndOfBoundedLength) {
  const auto raised = [](std::string_view message) {
    return fmt::format("chat template, line 1, column 19: {}", message);
  };
  EXPECT_EQ(error_of("{{ raise_exception('a\nb\\tc') }}"), raised("a\\nb\\tc"));
  EXPECT_EQ(error_of("{{ raise_exception('\xC3 \xC3\xA4') }}"), raised("\uFFFD \u00E4"));
  EXPECT_EQ(error_of("{{ raise_exception('x' * 9999) }}"), raised(std::string(1000, 'x') + "..."));
  EXPECT_TRUE(mentions(error_of("{{ x['new\nline'].y }}", {{"x", Json::object()}}),
                       "has no attribute 'new\\nline'"));
}

TEST(JinjaLimits, TemplatesAreOfBoundedSize) {
  const std::string text(size_t{4} << 20, 'x');
  EXPECT_EQ(render(text).size(), text.size());
  EXPECT_THROW(render(text + "x"), Error);
}

TEST(JinjaLimits, IntegersHave64Bits) {
  EXPECT_EQ(print("9223372036854775807"), "9223372036854775807");
  EXPECT_EQ(print("-9223372036854775808"), "-9223372036854775808");
  EXPECT_EQ(print("18446744073709551615"), "18446744073709551615");
  EXPECT_TRUE(mentions(error_of("{{ 18446744073709551616 }}"), "64 bits"));
  EXPECT_TRUE(mentions(error_of("{{ 9223372036854775807 + 1 }}"), "64 bits"));
  EXPECT_TRUE(mentions(error_of("{{ 2 ** 63 }}"), "64 bits"));
  EXPECT_EQ(print("2 ** 62"), "4611686018427387904");
  EXPECT_TRUE(mentions(error_of("{{ 4611686018427387904 * 2 }}"), "64 bits"));
  EXPECT_EQ(print("(-9223372036854775807 - 1) % -1"), "0");
  EXPECT_TRUE(mentions(error_of("{{ (-9223372036854775807 - 1) // -1 }}"), "64 bits"));
}

// Namespaces and loops can refer to themselves; the address sanitizer sees whether they are freed.
TEST(JinjaLimits, CyclesAreFreed) {
  EXPECT_EQ(render("{% set ns = namespace() %}{% set ns.x = ns %}{% set ns.y = [ns, ns.x] %}"), "");
  EXPECT_EQ(render("{% set ns = namespace() %}{% for i in [1, 2] %}{% set ns.l = [loop, ns] %}"
                   "{% endfor %}{{ ns.l[0].index }}{{ ns.l[0].last }}"),
            "2True");
  EXPECT_EQ(render("{% set ns = namespace() %}{% macro m() %}{% set f = m %}x{% endmacro %}"
                   "{% set ns.m = m %}{{ ns.m() }}"),
            "x");
  EXPECT_TRUE(
      mentions(error_of("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}"), "levels"));
}

TEST(JinjaLimits, ALoopOutlivesItsItemsSafely) {
  EXPECT_EQ(
      render("{% set ns = namespace() %}{% for i in [1, 2, 3] if i > 0 %}{% set ns.l = loop %}"
             "{% break %}{% endfor %}{{ ns.l.index }}{{ ns.l.nextitem }}{{ ns.l.last }}"),
      "1True");
  // A macro sees the variables of the iteration that it was made in.
  EXPECT_EQ(render("{% set ns = namespace() %}{% for i in [1, 2] %}{% macro m() %}{{ i }}"
                   "{{ loop.index }}{% endmacro %}{% if loop.first %}{% set ns.m = m %}{% endif %}"
                   "{% endfor %}{{ ns.m() }}"),
            "12");
}

}  // namespace
}  // namespace nanovllm::jinja
