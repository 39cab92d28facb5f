// Seeded mutations of templates: whatever comes out compiles and renders or is refused, within the
// limits.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "text/jinja/testing.h"

namespace nanovllm::jinja {
namespace {

const std::vector<std::string>& seeds() {
  static const std::vector<std::string> kSeeds = {
      "{% for m in messages %}{{ '<|' + m['role'] + '|>' ~ m.content|trim }}{% if not loop.last "
      "%}\n"
      "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
      "{%- macro f(a, b=1) -%}{{ a ~ b }}{%- endmacro -%}{{ f(*[1], b=[2, 3][::-1]) }}",
      "{% for x in messages %}{% macro f(a) %}{{ a ~ x.role ~ loop.index }}{% endmacro %}"
      "{{ f('a') }}{% endfor %}",
      "{% set ns = namespace(a=1, l=[]) %}{% for i in range(5) %}{% set ns.a = ns.a * 2 + i %}"
      "{% set ns.l = ns.l + [i] %}{% else %}none{% endfor %}{{ ns.l|tojson(indent=2) }}",
      "{% for x in [[1, [2]], 3] if x is iterable %}{{ loop.length }}{{ x|first }}{% endfor %}",
      "{% set t %}a{% filter upper %}b{{ messages|length }}{% endfilter %}{% endset %}{{ t[1:-1:2] "
      "}}",
      "{{ messages|selectattr('role', 'eq', 'user')|map(attribute='content')|join(', ') }}"
      "{{ {'a': (1, 2.5e3, none)}|dictsort|first }}{{ 7.5 // 2 ** -1 }}",
      "{{ {}|length }}{# c #}{{ ('<'|safe) + '<' ~ ('>'|e) }}",
      "{{ 'a,b'.split(',')|sort(reverse=true) }}{{ 'a-b'.replace('-', '+')[0] }}"
      "{{ messages[0].get('x', 'y').title() if messages and 1 < 2 <= 3 }}",
      "{% generation %}{% for k, v in {'a': 1, 'b': 2}.items() if v > 1 %}{{ k }}{% break %}"
      "{% endfor %}{% endgeneration %}{{ strftime_now('%Y') is string }}",
  };
  return kSeeds;
}

const std::vector<std::string>& fragments() {
  static const std::vector<std::string> kFragments = {
      "{{",          "}}",         "{%",
      "%}",          "{%-",        "-%}",
      "{#",          "#}",         "(",
      ")",           "[",          "]",
      "{",           "}",          "|",
      ".",           ",",          ":",
      "'",           "\"",         "\\",
      "~",           "**",         "//",
      "%",           "-",          "=",
      "==",          "in",         "is",
      "not",         "if",         "else",
      "for",         "endfor",     "set",
      "macro",       "endmacro",   "loop",
      "ns",          "messages",   "range",
      "|map",        "|list",      "|tojson",
      "|join",       "|sort",      "|unique",
      "|reverse",    "|last",      "|first",
      "99999",       "-1",         "1e308",
      "none",        "true",       "\xF0\x9F\x91\x8B",
      "\xFF",        "\xC3",       "\xED\xA0\x80",
      "\n",          "\r\n",       "{% break %}",
      "{% endif %}", "{{ loop }}", std::string(1, '\0')};
  return kFragments;
}

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  std::string next() {
    std::string text = pick(seeds());
    for (size_t count = 1 + below(2); count > 0; --count) mutate(text);
    return text;
  }

 private:
  size_t below(size_t bound) { return bound == 0 ? 0 : random_() % bound; }
  const std::string& pick(const std::vector<std::string>& from) { return from[below(from.size())]; }

  void mutate(std::string& text) {
    const size_t at = below(text.size() + 1);
    switch (below(6)) {
      case 0:
        text.insert(at, pick(fragments()));
        break;
      case 1:
        text.erase(at, below(8));
        break;
      case 2:
        text.replace(at, std::min(below(4), text.size() - at), pick(fragments()));
        break;
      case 3:  // part of another template
        text.insert(at, cut(pick(seeds())));
        break;
      case 4:  // again
        text.insert(at, cut(text));
        break;
      default:
        if (at < text.size()) text[at] = static_cast<char>(random_());
    }
  }
  std::string cut(const std::string& from) {
    const size_t begin = below(from.size());
    return from.substr(begin, below(40));
  }

  std::mt19937 random_;
};

class JinjaFuzz : public ::testing::TestWithParam<uint32_t> {};

TEST_P(JinjaFuzz, MutatedTemplatesAreRenderedOrRefused) {
  RenderOptions options;
  options.limits.max_steps = 20'000;
  options.limits.max_live_bytes = 1 << 22;
  options.limits.max_output_bytes = 1 << 18;
  const Json variables = {{"messages",
                           {{{"role", "user"}, {"content", " Gr\u00fc\u00dfe "}},
                            {{"role", "assistant"}, {"content", nullptr}}}},
                          {"add_generation_prompt", true}};
  Mutator mutator(GetParam());
  int rendered = 0;
  int refused = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::string source = mutator.next();
    try {
      rendered += Program(source).render(variables, options).size() < (1U << 18) + 1 ? 1 : 0;
    } catch (const Error& error) {
      ++refused;
      ASSERT_NE(std::string(error.what()).find("chat template, line "), std::string::npos)
          << source;
    }
  }
  EXPECT_EQ(rendered + refused, 4000);
  // Otherwise the mutations would test one half of the engine only.
  EXPECT_GT(rendered, 200);
  EXPECT_GT(refused, 200);
}

INSTANTIATE_TEST_SUITE_P(Seeds, JinjaFuzz, ::testing::Range(1U, 9U));

}  // namespace
}  // namespace nanovllm::jinja
