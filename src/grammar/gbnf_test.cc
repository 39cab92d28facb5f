#include "grammar/gbnf.h"

#include <fmt/format.h>

#include "grammar/testing.h"

namespace nanovllm::grammar {
namespace {

std::shared_ptr<const Grammar> compile_rules(const std::string& text) {
  return demo_compiler().gbnf(text);
}

TEST(Gbnf, TakesWhatLlamaCppTakes) {
  check_cases(
      {
          {"root ::= \"a\" | \"b\" root", {"a", "bba"}, {"b", "ab"}},
          {"# what it is\nroot ::= item+ # more\nitem ::= [a-z]+ \"\\n\"\n",
           {"a\n", "a\nbc\n"},
           {"", "a"}},
          {"root ::= (\n  \"x\"\n  | \"y\"\n)? \"z\"", {"z", "xz", "yz"}, {"x"}},
          {"root ::=\n  \"a\"\n  | \"b\"\n", {"a", "b"}, {"ab"}},
          {"root ::= [^\"\\\\]{2,3} \"\\x41\\u00e9\\U0001F600\"", {"xyAé😀", "éééAé😀"}, {"xAé😀"}},
          {"root ::= \"a\"{2} \"b\"{,1} \"c\"{1,}", {"aac", "aabcc"}, {"ac", "aabbc"}},
          {"root ::= . rest\nrest ::= \"\" | \"!\" rest", {"é", "x!!"}, {"", "x?"}},
          {"root ::= [-a\\]]+ [a-]", {"-]a-"}, {"b"}},
          {"root ::= \"(\" root* \")\"", {"()", "(()(()))"}, {"(", "())"}},
          {"root ::= (\"a\"\n  *\n  [b]\n  {2}\n) \"\n\"", {"aabb\n", "bb\n"}, {"ab\n", "bb"}},
          {"a_1 ::= |\n  \"x\"\r\nroot ::= a_1 [^\n] # end", {"xy", "y"}, {"x\n", "xx\ny"}},
      },
      compile_rules);
}

TEST(Gbnf, RefusesWithTheLineOrTheRule) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"root ::= other\n", "grammar: line 1: the rule \"other\" is not defined"},
      {"start ::= \"a\"", "grammar: the rule \"root\" is not defined"},
      {"root ::= \"a\"\nroot ::= \"b\"", "grammar: line 2: the rule \"root\" is defined twice"},
      {"root ::= \"a", "grammar: line 1: a literal is not closed"},
      {"root ::= [a", "grammar: line 1: a class is not closed"},
      {"root ::= (\"a\"", "grammar: line 1: a group is not closed"},
      {"root \"a\"", "grammar: line 1: expected '::=' behind the name of a rule"},
      {"root ::= \"\\q\"",
       "grammar: line 1: an escape that is not known; expected one of \\t \\r \\n \\\\ \\\" \\[ "
       "\\] "
       "\\x \\u \\U"},
      {"root ::= \"a\"\n\nx ::= \"b\n\n", "grammar: line 3: a literal is not closed"},
      {"root ::= \"a\"{3,2}", "grammar: line 1: a repeat's least count is above its most"},
      {"root ::= a\na ::= b | \"x\"\nb ::= a \"y\"",
       "grammar: the rule \"a\" refers to itself before it has read anything, which is not "
       "supported; let it begin with something else"},
      {"root ::= \"x\"? root \"y\"", "the grammar can't be satisfied: no text fits it"},
      {"root ::= \"x\"? root \"y\" | \"z\"",
       "grammar: the rule \"root\" refers to itself before it has read anything, which is not "
       "supported; let it begin with something else"},
      {"root ::= \"a\" root", "the grammar can't be satisfied: no text fits it"},
      {"root ::= <[100]>", "grammar: line 1: tokens by name or number are not supported"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(message_of([&] { compile_rules(text); }), message) << text;
  }
}

TEST(Gbnf, LiteralsInARowAreOne) {
  std::string text = "root ::=";
  for (int i = 0; i < 50000; ++i) text += " \"ab\"";
  const auto grammar = compile_rules(text);
  std::string all;
  for (int i = 0; i < 50000; ++i) all += "ab";
  EXPECT_TRUE(accepts(*grammar, all));
  EXPECT_LT(grammar->bytes(), 1u << 25);
}

TEST(Gbnf, DeepTextsGrowNoCallStack) {
  const auto grammar = compile_rules("root ::= \"(\" root? \")\"");
  EXPECT_TRUE(accepts(*grammar, std::string(50000, '(') + std::string(50000, ')')));
  std::string chain = "root ::= r0\n";
  for (int i = 0; i < 20000; ++i) chain += fmt::format("r{} ::= r{}\n", i, i + 1);
  chain += "r20000 ::= \"x\"\n";
  EXPECT_TRUE(accepts(*compile_rules(chain), "x"));
}

}  // namespace
}  // namespace nanovllm::grammar
