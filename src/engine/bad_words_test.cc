// How bad words are spelled, and which tokens they ban.
#include "engine/bad_words.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/engine_test_support.h"
#include "io/testing.h"

namespace nanovllm {
namespace {

using nanovllm::testing::error_of;

// a, b and c are 0, 1 and 2, a space is 3, "ab" is 4, " a" is 5, " ab" is 6, " b" is 7, " ba" is 8.
std::unique_ptr<const Tokenizer> syllables(const std::string& normalizer = "null") {
  return Tokenizer::from_json(
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":)" +
          normalizer +
          R"(,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,)"
          R"("use_regex":true},"post_processor":null,"decoder":{"type":"ByteLevel",)"
          R"("add_prefix_space":false,"trim_offsets":true,"use_regex":true},"model":{"type":"BPE",)"
          R"("dropout":null,"unk_token":null,"continuing_subword_prefix":null,)"
          R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"ignore_merges":false,)"
          R"("vocab":{"a":0,"b":1,"c":2,"Ġ":3,"ab":4,"Ġa":5,"Ġab":6,"Ġb":7,"Ġba":8},)"
          R"("merges":["a b","Ġ a","Ġ ab","Ġ b","Ġb a"]}})",
      "syllables");
}

Ids banned(const std::vector<std::string>& words, const Ids& output) {
  Ids ids;
  BadWords(words, *syllables()).append_banned(output, ids);
  return ids;
}

TEST(BadWords, AreBannedAtTheBeginningAndBehindASpace) {
  EXPECT_EQ(banned({"ab"}, {}), (Ids{4, 6}));
  EXPECT_EQ(banned({" \t\n\u00a0ab"}, {}),
            (Ids{4, 6}));  // the space that is given is not asked for
  EXPECT_EQ(banned({"ab", "a"}, {2, 2}), (Ids{0, 4, 5, 6}));
  EXPECT_EQ(banned({"ab", "a", " ab", "a"}, {}), (Ids{0, 4, 5, 6}));  // each once
}

TEST(BadWords, CountBehindASpaceOnlyWhereThatIsAsManyTokensWithAnotherBeginning) {
  EXPECT_EQ(banned({"c"}, {}), Ids{2});  // " c" is two
  EXPECT_EQ(banned({"abc"}, {4}), Ids{2});
  EXPECT_EQ(banned({"abc"}, {6}), Ids{2});  // " ab", "c"
}

TEST(BadWords, OfSeveralTokensBanTheLastWhereTheOthersEndTheOutput) {
  EXPECT_EQ(banned({"cab"}, {}), Ids{});
  EXPECT_EQ(banned({"cab"}, {0, 2}), Ids{4});
  EXPECT_EQ(banned({"cab"}, {2, 0}), Ids{});
  EXPECT_EQ(banned({"ccb"}, {2}), Ids{});
  EXPECT_EQ(banned({"ccb"}, {2, 2}), Ids{1});
  EXPECT_EQ(banned({"ccb"}, {1, 2, 2}), Ids{1});
  EXPECT_FALSE(BadWords({"ab", "c"}, *syllables()).depend_on_output());
  EXPECT_TRUE(BadWords({"ab", "cb"}, *syllables()).depend_on_output());
}

TEST(BadWords, ThatTheTokenizerCannotSpellAreRefused) {
  const Error error = error_of([] { banned({"ab", "x"}, {}); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_STREQ(error.what(), "bad_words can't hold \"x\": the tokenizer has no tokens for it");
}

TEST(BadWords, ThatCanComeAllTheSameAreNamed) {
  const auto remark = [](const std::string& word, const std::string& normalizer = "null") {
    return remark_on_bad_word(word, *syllables(normalizer));
  };
  EXPECT_EQ(remark("ba"),
            "bad_words: \"ba\" can come: behind a space its tokens are 8 and not 1, 0; logit_bias "
            "can keep a token away");
  EXPECT_EQ(remark(" ab "),
            "bad_words: \" ab \" can come: the space at its end belongs to the token of the next "
            "word");
  EXPECT_EQ(remark("Ab", R"({"type":"Lowercase"})"),
            "bad_words: \"Ab\" can come: the tokenizer reads it as \"ab\"");
  for (const char* word : {"ab", " ab", "a", "c", "cab", "abc", "a c"}) {
    EXPECT_EQ(remark(word), "") << word;
  }
}

TEST(BadWords, LoseTheWhiteSpaceTheyBeginWith) {
  EXPECT_EQ(without_leading_space(" \u3000\x1c\r\n a b "), "a b ");
  EXPECT_EQ(without_leading_space("a"), "a");
  EXPECT_EQ(without_leading_space(" \t"), "");
  EXPECT_EQ(without_leading_space(" \xe3\x80"), "\xe3\x80");  // half a character
}

}  // namespace
}  // namespace nanovllm
