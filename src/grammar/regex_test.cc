#include "grammar/regex.h"

#include "grammar/testing.h"

namespace nanovllm::grammar {
namespace {

std::shared_ptr<const Grammar> compile_regex_text(const std::string& pattern) {
  return demo_compiler().regex(pattern);
}

TEST(Regex, MatchesTheWholeText) {
  check_cases(
      {
          {"abc", {"abc"}, {"", "ab", "abcd", "xabc"}},
          {"", {""}, {"a"}},
          {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
          {"(a|b)*c", {"c", "abbac"}, {"", "ab", "cc"}},
          {"(?:x)(?<name>y)(?P<other>z)", {"xyz"}, {"xy"}},
          {"a{2,3}b{2}c{1,}d{,2}", {"aabbc", "aaabbccdd"}, {"abbc", "aabbcddd", "aabbbc"}},
          {"a{x}{", {"a{x}{"}, {"a"}},
          {"a+?b*?c??", {"a", "aabbc"}, {"b"}},
          {"[a-c\\d_-]+", {"a1_-c"}, {"d", ""}},
          {"[^a-c]", {"d", "é", "\n", "😀"}, {"a", "dd"}},
          {".", {"a", "é", "😀", "\t"}, {"\n", "\r", ""}},
          {"\\d\\D\\w\\W\\s\\S", {"1a_- x", "1é_→\tx"}, {"aa_- x", "11_- x", "1a_-  "}},
          {"\\S", {"é"}, {"\u00A0", "\u3000", " "}},
          {"\\x41\\u00e9\\u{1F600}\\uD83D\\uDE00\\n\\t\\.\\/", {"Aé😀😀\n\t./"}, {"A"}},
          {"[\\]\\[\\^\\-\\\\]+", {"[]^-\\"}, {"a"}},
          {"[é-ü]", {"é", "ê", "ü"}, {"e", "ý"}},
          {"^a$|^b|c$", {"a", "b", "c"}, {"ab"}},
          {"(^a)b(c$)", {"abc"}, {"ab"}},
          {"a^b|c", {"c"}, {"ab", "a^b"}},
          {"(^a){0}b", {"b"}, {"ab"}},
          {"(^a)?b(c$){0,1}", {"b", "ab", "abc"}, {"abcc"}},
          {"[\\u0000-\\u{10FFFF}]",
           {"a", "\x7f", "߿", "ࠀ", "￿", "𐀀", "\xF4\x8F\xBF\xBF"},
           {"", "\xED\xA0\x80", "\xC3", "\xFF"}},
      },
      compile_regex_text);
}

TEST(Regex, TextIsForcedAsFarAsThereIsOneWayToGoOn) {
  const auto forced = [](const std::string& pattern, std::string_view text, size_t most = 100) {
    const auto grammar = demo_compiler().regex(pattern);
    return grammar->forced_text(grammar->advance(grammar->start(), text), most);
  };
  EXPECT_EQ(forced("abc(de|fg)h?", ""), "abc");
  EXPECT_EQ(forced("abc(de|fg)h?", "", 2), "ab");
  EXPECT_EQ(forced("abc(de|fg)h?", "abc"), "");
  EXPECT_EQ(forced("abc(de|fg)h?", "abcf"), "g");
  EXPECT_EQ(forced("abc(de|fg)h?", "abcfg"), "");  // it may end here
  EXPECT_EQ(forced("abc(de|fg)h?", "x"), "");
  EXPECT_EQ(forced("a(é|à)", ""), "a\xC3");
  EXPECT_EQ(forced("[ab]{3}cc", "aba"), "cc");
  EXPECT_EQ(forced("a[bc]{0}(é{2}|é{2})b", ""), "aééb");
}

// What ECMAScript, Python and RE2 take for white space, digits and words is not the same: what is
// to have none has none of any.
TEST(Regex, NegatedClassesAreThoseOfAllLanguages) {
  check_cases(
      {{R"(\D)", {"a", "é", "²", "→"}, {"1", "٣", "９", "𝟙"}},
       {R"([^\d])", {"a", "é", "²"}, {"1", "٣"}},
       {R"([^\D])", {"1"}, {"٣", "a"}},
       {R"([\Da1])", {"1", "a", "é"}, {"2", "٣"}},
       {R"(\W)", {"-", "→", "\u0301", "😀"}, {"a", "_", "é", "٣", "中", "²", "ⅷ", "𐐀"}},
       {R"([^\w])", {"-", "→"}, {"a", "é", "٣"}},
       {R"([^\W])", {"a", "_", "1"}, {"é", "-"}},
       {R"(\d\w)", {"1a"}, {"٣a", "1é"}},
       {R"([^\s@]+@\S+)", {"a@b", "\u00e9@\u00e9"}, {"a\u00a0@b", "a@b\u2028", "a @b", "\u3000@b"}},
       {R"([^\S])", {" ", "\t"}, {"\u00a0", "a", "\u2028"}},
       {R"([\S\n])", {"\n", "a"}, {"\u00a0", " "}},
       {R"([\sx])", {" ", "x"}, {"\u00a0", "a"}},
       {R"([^x-\s])", {"a", "\u00e9"}, {"\u00a0", " ", "x", "-"}}},
      [](const std::string& regex) { return demo_compiler().regex(regex); });
}

TEST(Regex, CountsAreNoCopies) {
  const auto grammar = compile_regex_text("(.{1000}){1000}");
  GrammarState state = grammar->start();
  for (int i = 0; i < 1000; ++i) state = grammar->advance(state, "aaaaaaaaaa");
  EXPECT_FALSE(grammar->is_dead(state));
  EXPECT_LT(compile_regex_text("(.{0,1000}x){0,1000}")->bytes(), 1 << 20);
  const auto hundred = compile_regex_text("(a|bb){100}");
  EXPECT_TRUE(accepts(*hundred, std::string(100, 'a')));
  EXPECT_TRUE(accepts(*hundred, std::string(200, 'b')));
  EXPECT_FALSE(accepts(*hundred, std::string(199, 'b')));
  EXPECT_FALSE(accepts(*hundred, std::string(101, 'a')));
}

TEST(Regex, RepeatsOfWhatMayBeEmptyEnd) {
  check_cases(
      {
          {"(a*)*b", {"b", "aaab"}, {"", "a", "ba"}},
          {"(a?){3}b", {"b", "aaab"}, {"aaaab"}},
          {"((a|b?)*c?)*d", {"d", "abcabd"}, {"e"}},
          {"(a*b*){2,3}",
           {"", "ab", "aabbaabbab"},
           {"ababaab"
            "b"
            "ab"
            "abab",
            "c"}},
          {"(|a){1000000}", {"", "aaa"}, {"b"}},
          {"(a{2,3}){2}", {"aaaa", "aaaaa", "aaaaaa"}, {"aaa", "aaaaaaa"}},
          {"(a{2}){2,3}", {"aaaa", "aaaaaa"}, {"aaa", "aaaaa"}},
          {"(a{3}){0,}", {"", "aaa"}, {"a", "aaaa"}},
          {"((([ab][cd])?e*)*f*)*", {"", "ace", "acf", "acefacf"}, {"c", "ce", "ecf", "a"}},
          {"(((([ab][cd])?)*([ab]e)*)*)*", {"", "acbe", "acae"}, {"e", "ace", "c"}},
      },
      compile_regex_text);
}

TEST(Regex, RefusesWithThePosition) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"ab(c", "regex has a group that is not closed (at position 2)"},
      {"ab)", "regex has a ')' that nothing opens (at position 2)"},
      {"[a", "regex has a class that is not closed (at position 0)"},
      {"[b-a]", "regex has a range that ends before it begins (at position 1)"},
      {"*a", "regex repeats nothing (at position 0)"},
      {"a**", "regex repeats a repeat; put the first one into a group (at position 2)"},
      {"a{3,2}", "regex has a repeat whose least count is above its most (at position 1)"},
      {"a{1000001}", "regex has a repeat of more than 1000000 times (at position 1)"},
      {"a\\", "regex ends with a backslash (at position 1)"},
      {"(?=a)", "regex has look-around, which is not supported (at position 0)"},
      {"(?<!a)", "regex has look-around, which is not supported (at position 0)"},
      {"(?i)a", "regex has a group with flags, which is not supported (at position 0)"},
      {"(a)\\1", "regex has a back-reference, which is not supported (at position 3)"},
      {"\\bа", "regex has a boundary of words, which is not supported (at position 0)"},
      {"a*+", "regex has a possessive repeat, which is not supported (at position 1)"},
      {"(^a)*", "regex has an anchor that is repeated, which is not supported (at position 0)"},
      {"\\xZZ", "regex has an escape with too few hexadecimal digits (at position 0)"},
      {"\\q", "regex has the escape \\q, which is not supported (at position 0)"},
      {std::string(101, '(') + std::string(101, ')'),
       "regex has groups more than 100 deep (at position 100)"},
  };
  for (const auto& [pattern, message] : cases) {
    EXPECT_EQ(message_of([&] { compile_regex_text(pattern); }), message) << pattern;
  }
  EXPECT_EQ(
      message_of([&] { compile_regex_text(std::string(100, '(') + "a" + std::string(100, ')')); }),
      "");
  EXPECT_EQ(message_of([&] { compile_regex_text("a{1000000}"); }), "");
  EXPECT_NE(message_of([&] { compile_regex_text("a^b"); }), "");
  EXPECT_EQ(message_of([&] { compile_regex_text(std::string(1 << 20, 'a')); }), "");
  EXPECT_EQ(message_of([&] { compile_regex_text(std::string((1 << 20) + 1, 'a')); }),
            "the regular expression has 1048577 bytes; at most 1048576 are supported");
}

TEST(Regex, HasABoundOnWaysToBegin) {
  std::string pattern;
  for (int i = 0; i < 10000; ++i) pattern += "[ab]" + std::to_string(i) + "|";
  EXPECT_TRUE(accepts(*compile_regex_text(pattern + "c"), "b9999"));
  for (int i = 10000; i < 20000; ++i) pattern += "[ab]" + std::to_string(i) + "|";
  EXPECT_EQ(message_of([&] { compile_regex_text(pattern + "c"); }),
            "the grammar has too many ways to begin a text; make it simpler");
}

TEST(Regex, ManyAlternativesShareTheirBeginnings) {
  std::string pattern = "[0-9]+|";
  for (int i = 0; i < 10000; ++i)
    pattern += "text number " + std::to_string(i * 7919 % 10007) + " x|";
  const auto grammar = compile_regex_text(pattern + "end");
  EXPECT_TRUE(accepts(*grammar, "text number 5 x"));
  EXPECT_TRUE(accepts(*grammar, "end"));
  EXPECT_TRUE(accepts(*grammar, "12"));
  EXPECT_FALSE(accepts(*grammar, "text number 5"));
  EXPECT_LT(grammar->bytes(), 20u << 20);
}

TEST(Regex, ChoosesOneOfManyTexts) {
  std::vector<std::string> texts;
  for (int i = 0; i < 10000; ++i) texts.push_back("text number " + std::to_string(i));
  const auto grammar = demo_compiler().choice(texts);
  EXPECT_TRUE(accepts(*grammar, "text number 9999"));
  EXPECT_TRUE(accepts(*grammar, "text number 1"));
  EXPECT_FALSE(accepts(*grammar, "text number 10000"));
  EXPECT_FALSE(accepts(*grammar, "text number "));
  EXPECT_EQ(message_of([&] { demo_compiler().choice({std::string(1 << 20, 'a')}); }),
            "choice has 1048591 bytes; at most 1048576 are supported");
  EXPECT_EQ(message_of([&] { demo_compiler().choice({}); }),
            "choice is an empty list; expected one text or more to choose from");
}

}  // namespace
}  // namespace nanovllm::grammar
