#include "text/scanner.h"

#include <gtest/gtest.h>

#include <random>

#include "text/regex.h"
#include "text/testing.h"
#include "text/unicode.h"

namespace nanovllm::text {
namespace {

class ScannerTest : public ::testing::TestWithParam<KnownPattern> {
 protected:
  void expect_same(const std::string& text) {
    for (size_t at = 0; at < text.size();) {
      const auto match = regex_.find(text, at);
      ASSERT_TRUE(match && match->begin == at) << ::testing::PrintToString(text) << " at " << at;
      ASSERT_EQ(scan(GetParam(), text, at), match->end)
          << ::testing::PrintToString(text) << " at " << at;
      at = match->end;
    }
  }
  Regex regex_{regex_of(GetParam()), "test"};
};

TEST_P(ScannerTest, CutsRandomTextWhereTheRegularExpressionDoes) {
  std::mt19937 random(7);
  for (int i = 0; i < 5000; ++i) expect_same(random_text(random, 24));
}

TEST_P(ScannerTest, ClassesEveryCharacterAsTheRegularExpressionDoes) {
  std::string text;
  for (uint32_t c = 1; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    text += 'x';
    append_utf8(text, c);
    if (text.size() < 4096) continue;
    expect_same(text);
    text.clear();
  }
}

TEST_P(ScannerTest, IsFoundByItsRegularExpression) {
  EXPECT_EQ(known_pattern(regex_of(GetParam())), GetParam());
}

INSTANTIATE_TEST_SUITE_P(All, ScannerTest,
                         ::testing::Values(KnownPattern::kGpt2, KnownPattern::kOneDigit,
                                           KnownPattern::kThreeDigits));

TEST(Scanner, OtherPatternsAreUnknown) {
  EXPECT_FALSE(known_pattern(R"(\s+)"));
  EXPECT_FALSE(known_pattern(""));
}

}  // namespace
}  // namespace nanovllm::text
