#include "engine/suffix_drafter.h"

#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

namespace nanovllm {
namespace {

std::vector<int32_t> ids_of(const std::string& letters) { return {letters.begin(), letters.end()}; }

// They live as long as the test program: a drafter knows them by their place.
Sequence& sequence_of(const std::string& prompt, const std::string& output = "",
                      uint64_t salt = 0) {
  static std::deque<Sequence> sequences;
  Sequence* const sequence = &sequences.emplace_back(0, 0, ids_of(prompt), 1000);
  const auto ids = ids_of(output);
  sequence->token_ids.insert(sequence->token_ids.end(), ids.begin(), ids.end());
  sequence->salt = salt;
  return *sequence;
}

std::string draft_for(SuffixDrafter& drafter, const Sequence& sequence, int most = 8) {
  DraftRequest request{.sequence = &sequence, .most = most};
  drafter.propose({&request, 1});
  return {request.draft.ids.begin(), request.draft.ids.end()};
}

void end(SuffixDrafter& drafter, const std::string& output, uint64_t salt = 0) {
  drafter.ended(sequence_of("?", output, salt));
}

SuffixDrafterOptions long_drafts() { return {.most_per_match = 100}; }

TEST(SuffixDrafter, CopiesWhatFollowedTheLongestEndThatStandsEarlier) {
  SuffixDrafter drafter(long_drafts());
  EXPECT_EQ(draft_for(drafter, sequence_of("abcXYZ--bcPQ--abc")), "XYZ--bcP");
  EXPECT_EQ(draft_for(drafter, sequence_of("abc1 abc2 ab", "c")), "2 abc2 a");
  EXPECT_EQ(draft_for(drafter, sequence_of("abcdef")), "");
  EXPECT_EQ(draft_for(drafter, sequence_of("a")), "");
}

TEST(SuffixDrafter, ACopyGoesOnWithItself) {
  SuffixDrafter drafter(long_drafts());
  EXPECT_EQ(draft_for(drafter, sequence_of("xabab")), "abababab");
  EXPECT_EQ(draft_for(drafter, sequence_of("xaaa")), "aaaaaaaa");
}

TEST(SuffixDrafter, FollowsASequenceAsItGrows) {
  SuffixDrafter drafter(long_drafts());
  Sequence& sequence = sequence_of("abcdefgh");
  EXPECT_EQ(draft_for(drafter, sequence), "");
  for (const char letter : std::string("bc")) sequence.token_ids.push_back(letter);
  EXPECT_EQ(draft_for(drafter, sequence, 3), "def");
  sequence.token_ids.push_back('d');
  EXPECT_EQ(draft_for(drafter, sequence, 3), "efg");
}

TEST(SuffixDrafter, LengthsAreBound) {
  SuffixDrafter drafter({});
  EXPECT_EQ(draft_for(drafter, sequence_of("abcdefgh bc")), "de");  // a token for each found again
  EXPECT_EQ(draft_for(drafter, sequence_of("abcdefgh bc"), 1), "d");
  SuffixDrafter ngram({.min_length = 2, .max_length = 3, .max_texts = 0, .most_per_match = 100});
  EXPECT_EQ(draft_for(ngram, sequence_of("abc c"), 1), "");
  EXPECT_EQ(draft_for(ngram, sequence_of("abcd bc"), 1), "d");
  // More than three are not compared: the latest counts.
  EXPECT_EQ(draft_for(ngram, sequence_of("wxyz1 xyz2 wxyz"), 1), "2");
}

TEST(SuffixDrafter, OutputsOfEndedSequencesAreSearchedWhereTheyHaveMore) {
  SuffixDrafter drafter(long_drafts());
  end(drafter, "one two three");
  EXPECT_EQ(draft_for(drafter, sequence_of("? one")), " two thr");
  EXPECT_EQ(draft_for(drafter, sequence_of("one and one"), 4), " and");  // its own are as long
  EXPECT_EQ(draft_for(drafter, sequence_of("; on"), 3), "e t");
  EXPECT_EQ(draft_for(drafter, sequence_of("thre")), "e");  // to the end of the text
  end(drafter, "one two four");
  EXPECT_EQ(draft_for(drafter, sequence_of("? one two "), 3), "fou");
}

TEST(SuffixDrafter, OnlySequencesWithTheSameSaltShare) {
  SuffixDrafter drafter(long_drafts());
  end(drafter, "one two three", 7);
  EXPECT_EQ(draft_for(drafter, sequence_of("? one")), "");
  EXPECT_EQ(draft_for(drafter, sequence_of("? one", "", 8)), "");
  EXPECT_EQ(draft_for(drafter, sequence_of("? one", "", 7), 4), " two");
}

TEST(SuffixDrafter, TheLatestOutputsAreKept) {
  SuffixDrafter drafter({.max_texts = 3, .most_per_match = 100});
  const auto text = [](int i) { return "key" + std::to_string(i) + "=value" + std::to_string(i); };
  for (int i = 0; i < 50; ++i) {
    end(drafter, text(i), i % 2);
    for (int j = 0; j <= i; ++j) {
      const std::string key = "key" + std::to_string(j) + "=";
      const std::string draft = draft_for(drafter, sequence_of(key, "", j % 2), 20);
      const std::string value = "value" + std::to_string(j);
      EXPECT_EQ(draft == value, j > i - 3) << i << " " << j;
    }
    EXPECT_EQ(drafter.num_texts(), std::min(i + 1, 3));
  }
  SuffixDrafter none({.max_texts = 0});
  end(none, "one two");
  EXPECT_EQ(none.num_texts(), 0);
  EXPECT_EQ(draft_for(none, sequence_of("one")), "");
}

}  // namespace
}  // namespace nanovllm
