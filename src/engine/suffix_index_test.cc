#include "engine/suffix_index.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace nanovllm {
namespace {

using Ids = std::vector<int32_t>;

// Tokens, of which '|' is a break.
Ids text_of(const std::string& letters) {
  Ids ids;
  for (const char letter : letters) ids.push_back(letter == '|' ? SuffixIndex::kBreak : letter);
  return ids;
}

int common(std::span<const int32_t> a, std::span<const int32_t> b, int most) {
  int count = 0;
  while (count < most && count < std::ssize(a) && count < std::ssize(b) &&
         a[a.size() - 1 - count] == b[b.size() - 1 - count] &&
         a[a.size() - 1 - count] != SuffixIndex::kBreak) {
    ++count;
  }
  return count;
}

// By looking at all of the ends.
SuffixIndex::Match longest(std::span<const int32_t> text, const std::vector<int>& ends,
                           std::span<const int32_t> context, int most) {
  SuffixIndex::Match best;
  for (const int end : ends) {
    const int length = common(text.first(end), context, most);
    if (length > 0 && length >= best.length) best = {length, end};
  }
  return best;
}

void expect_equal(const SuffixIndex::Match& found, const SuffixIndex::Match& expected) {
  ASSERT_EQ(found.length, expected.length);
  ASSERT_EQ(found.end, expected.end);
}

TEST(SuffixIndex, TheLatestOfTheLongestIsFound) {
  const Ids text = text_of("abcabdabcxbc");
  SuffixIndex index(24);
  expect_equal(index.longest(text, text), {});
  for (int end = 1; end < std::ssize(text); ++end) index.insert(text, end);
  expect_equal(index.longest(text, text), {2, 9});
  expect_equal(index.longest(text, text_of("yyab")), {2, 8});
  expect_equal(index.longest(text, text_of("cab")), {3, 5});
  expect_equal(index.longest(text, text_of("y")), {});
}

TEST(SuffixIndex, NoContextReachesBeyondABreak) {
  const Ids text = text_of("abc|abc|abd");
  SuffixIndex index(24);
  for (int end = 1; end <= std::ssize(text); ++end) {
    if (text[end - 1] != SuffixIndex::kBreak) index.insert(text, end);
  }
  expect_equal(index.longest(text, text_of("c|ab")), {2, 10});
  expect_equal(index.longest(text, text_of("xab")), {2, 10});
  expect_equal(index.longest(text, text_of("bc")), {2, 7});
}

TEST(SuffixIndex, FindsWhatASearchOfAllFinds) {
  std::mt19937 random(7);
  for (const int letters : {1, 2, 3, 20}) {
    for (const int most : {1, 4, 24}) {
      SuffixIndex index(most);
      Ids text;
      std::vector<int> ends;
      for (int i = 0; i < 300; ++i) {
        if (!text.empty()) {
          expect_equal(index.longest(text, text), longest(text, ends, text, most));
          if (HasFatalFailure()) return;
          if (text.back() != SuffixIndex::kBreak) {
            ends.push_back(static_cast<int>(text.size()));
            index.insert(text, ends.back());
          }
        }
        // Copies of what stands before, so that long contexts repeat.
        const bool copies = i > 10 && random() % 4 != 0;
        text.push_back(copies ? text[random() % 5 + i - 9]
                              : static_cast<int32_t>(random() % letters));
        if (random() % 40 == 0) text.back() = SuffixIndex::kBreak;
      }
    }
  }
}

// The oldest go, as the texts of finished requests do.
TEST(SuffixIndex, WhatIsErasedIsNotFound) {
  std::mt19937 random(8);
  constexpr int kKept = 60, kMost = 5;
  SuffixIndex index(kMost);
  Ids text;
  std::vector<int> ends;
  for (int i = 0; i < 2000; ++i) {
    text.push_back(static_cast<int32_t>(random() % 3));
    ends.push_back(static_cast<int>(text.size()));
    index.insert(text, ends.back());
    if (std::ssize(ends) > kKept) {
      index.erase(text, ends.front());
      ends.erase(ends.begin());
    }
    if (text.size() == 500) {  // cut
      const int cut = ends.front() - 1 - kMost;
      text.erase(text.begin(), text.begin() + cut);
      for (int& end : ends) end -= cut;
      index.shift(cut);
    }
    const Ids asked = {static_cast<int32_t>(random() % 3), static_cast<int32_t>(random() % 3),
                       static_cast<int32_t>(random() % 3)};
    expect_equal(index.longest(text, asked), longest(text, ends, asked, kMost));
    if (HasFatalFailure()) return;
    ASSERT_LE(index.size(), kKept);
  }
}

}  // namespace
}  // namespace nanovllm
