#include "engine/constraint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "engine/constraint_testing.h"
#include "grammar/token_index.h"

namespace nanovllm {
namespace {

using OpenIds = std::set<int32_t>;

class ConstraintTest : public ::testing::Test {
 protected:
  std::shared_ptr<const ConstraintRules> rules(const SamplingParams& params, const std::string& re,
                                               int vocab_size = kNumTokens) {
    return table_.rules_of(params, re.empty() ? nullptr : compiler_.regex(re), vocab_size,
                           {kEndOfText});
  }
  static std::vector<uint32_t> words(const TokenMask& mask) {
    std::vector<uint32_t> words((mask.rules->vocab_size + 31) / 32, 0xABCDABCD);
    mask.fill(words);
    return words;
  }
  // With the end of text, that is id 0, as "$".
  OpenIds open(const Constraint& constraint, bool is_early = false) {
    const TokenMask mask = constraint.mask(is_early);
    if (mask.rules == nullptr) return {-1};  // all
    OpenIds ids;
    const auto bits = words(mask);
    for (int32_t id = 0; id < std::ssize(bits) * 32; ++id) {
      if ((bits[id / 32] >> id % 32 & 1) != 0) ids.insert(id);
    }
    return ids;
  }
  static OpenIds banned(const Constraint& constraint) {
    return {constraint.banned_ids().begin(), constraint.banned_ids().end()};
  }
  int32_t id(const std::string& text) { return *tokenizer_->token_to_id(text); }
  OpenIds ids(const std::vector<std::string>& texts) {
    OpenIds ids;
    for (const std::string& text : texts) ids.insert(id(text));
    return ids;
  }

  const std::unique_ptr<const Tokenizer> tokenizer_ = short_texts();
  const GrammarCompiler compiler_{*tokenizer_};
  ConstraintTable table_;
};

TEST_F(ConstraintTest, AllowsWhatGoesOnWithTheTextAndItsEndWhereItMayEnd) {
  const auto its_rules = rules({}, "ab+c?");
  Constraint constraint(*its_rules, {});
  EXPECT_EQ(open(constraint), ids({"a", "ab", "abc"}));
  EXPECT_FALSE(constraint.may_end());
  constraint.append(id("a"));
  EXPECT_EQ(open(constraint), ids({"b", "bc"}));
  constraint.append(id("b"));
  EXPECT_EQ(open(constraint), ids({"b", "bc", "c", "<eos>"}));
  EXPECT_TRUE(constraint.may_end());
  constraint.append(id("c"));
  EXPECT_EQ(open(constraint), ids({"<eos>"}));
  EXPECT_FALSE(constraint.is_stuck());
}

TEST_F(ConstraintTest, StopTokensAreNoText) {
  SamplingParams params;
  params.stop_token_ids = {id("b"), 49, id("b")};
  const auto its_rules = rules(params, "a(b|c)*");
  Constraint constraint(*its_rules, {});
  EXPECT_EQ(open(constraint), ids({"a", "ab", "abc"}));
  constraint.append(id("a"));
  OpenIds expected = ids({"b", "bc", "c", "<eos>"});
  expected.insert(49);
  EXPECT_EQ(open(constraint), expected);  // "b" ends it here
  const auto never_here = rules(params, "a(b|c)+");
  Constraint other(*never_here, {});
  other.append(id("a"));
  EXPECT_EQ(open(other), ids({"bc", "c"}));
}

TEST_F(ConstraintTest, AnEndOfTextThatIsIgnoredIsNeverDrawn) {
  SamplingParams params;
  params.ignore_eos = true;
  params.stop_token_ids = {40};
  const auto its_rules = rules(params, "a+");
  Constraint constraint(*its_rules, {});
  constraint.append(id("a"));
  EXPECT_EQ(open(constraint), (OpenIds{id("a"), 40}));
  EXPECT_FALSE(constraint.admits(kEndOfText));
  EXPECT_TRUE(constraint.admits(40));
  // A stop token stays one if it is an end of text too.
  params.stop_token_ids = {kEndOfText};
  const auto stopping = rules(params, "a+");
  Constraint stops(*stopping, {});
  stops.append(id("a"));
  EXPECT_EQ(open(stops), ids({"a", "<eos>"}));
}

TEST_F(ConstraintTest, MinTokensGiveWayWhereNothingElseIsAllowed) {
  const auto its_rules = rules({}, "ab?");
  Constraint constraint(*its_rules, {});
  constraint.append(id("a"));
  EXPECT_EQ(open(constraint, true), ids({"b"}));
  EXPECT_EQ(open(constraint, false), ids({"b", "<eos>"}));
  constraint.append(id("b"));
  EXPECT_EQ(open(constraint, true), ids({"<eos>"}));
}

TEST_F(ConstraintTest, AllowedTokensNarrowItFurther) {
  SamplingParams params;
  params.allowed_token_ids = {{id("ab"), id("c"), id("d"), 0}};
  const auto its_rules = rules(params, "a?b?c?");
  Constraint constraint(*its_rules, {});
  EXPECT_EQ(open(constraint), ids({"ab", "c", "<eos>"}));
  params.allowed_token_ids = {{id("ab")}};
  const auto without_end = rules(params, "ab");
  Constraint closed(*without_end, {});
  closed.append(id("ab"));
  EXPECT_EQ(open(closed), OpenIds{});
  EXPECT_TRUE(closed.may_end());
  EXPECT_TRUE(closed.is_stuck());
  // Alone they bind nothing but the draw.
  params.allowed_token_ids = {{4, 49}};
  const auto alone = rules(params, "");
  Constraint free(*alone, {});
  EXPECT_EQ(open(free), (OpenIds{4, 49}));
  EXPECT_FALSE(free.binds());
  EXPECT_FALSE(free.depends_on(1));
  free.append(7);
  EXPECT_FALSE(free.is_stuck());
}

TEST_F(ConstraintTest, AVocabularyMayBeSmallerThanItsTokenizers) {
  const auto its_rules = rules({}, "[a-h0-9{}:,-]*", 20);
  Constraint constraint(*its_rules, {});
  const OpenIds got = open(constraint);
  EXPECT_EQ(*got.rbegin(), 19);
  EXPECT_EQ(got.size(), 20U);
}

TEST_F(ConstraintTest, AThoughtThatIsOpenComesBeforeTheText) {
  SamplingParams params;
  params.thinking_tags = ThinkingTags{{5, 6}, {7, 8}, 0};
  params.stop_token_ids = {40, 8};  // the tag's own ends the thought
  const auto its_rules = rules(params, "ab");
  Constraint constraint(*its_rules, params.thinking_tags);
  EXPECT_EQ(open(constraint), OpenIds{-1});
  for (const int32_t said : {1, 9, 7, 7}) {
    EXPECT_FALSE(constraint.binds());
    EXPECT_TRUE(constraint.admits(said));
    EXPECT_EQ(banned(constraint), (OpenIds{kEndOfText, 40}));
    for (const int32_t id : {kEndOfText, 40}) EXPECT_FALSE(constraint.admits(id));
    constraint.append(said);
  }
  EXPECT_TRUE(constraint.depends_on(1));  // the next may end it
  constraint.append(8);
  EXPECT_TRUE(constraint.is_in_text());
  EXPECT_EQ(banned(constraint), OpenIds{});
  EXPECT_EQ(open(constraint), ids({"a", "ab"}));
}

TEST_F(ConstraintTest, WhatFollowsDependsOnTokensThatMayEndAThought) {
  SamplingParams params;
  params.thinking_tags = ThinkingTags{{5}, {47, 48}, 3};
  const auto its_rules = rules(params, "ab");
  Constraint constraint(*its_rules, params.thinking_tags);
  EXPECT_FALSE(constraint.depends_on(1));
  EXPECT_TRUE(constraint.depends_on(2));
  constraint.append(47);
  EXPECT_FALSE(constraint.depends_on(0));
  EXPECT_TRUE(constraint.depends_on(1));
}

TEST(Constraint, AThoughtEndsWithinATokenThatHoldsMore) {
  const std::vector<std::string> texts = {"",       "<think>", "</", "think", ">",  ">\n\n",
                                          ">\n\na", "a",       "b",  "\n",    " </"};
  const GrammarCompiler compiler(std::make_shared<const grammar::TokenIndex>(texts));
  ConstraintTable table;
  const auto states_behind = [&](const std::string& re, const std::vector<int32_t>& end_ids,
                                 const std::vector<int32_t>& said) {
    SamplingParams params;
    params.thinking_tags = ThinkingTags{{1}, end_ids, 0};
    const auto rules = table.rules_of(params, compiler.regex(re), 11, {0});
    Constraint constraint(*rules, params.thinking_tags);
    for (const int32_t id : said) {
      EXPECT_FALSE(constraint.binds());
      EXPECT_TRUE(constraint.depends_on(1));
      EXPECT_FALSE(constraint.depends_on(0));
      EXPECT_TRUE(constraint.admits(id));
      constraint.append(id);
    }
    std::string open = constraint.is_in_text() ? "" : "in a thought ";
    for (int32_t id = 0; constraint.is_in_text() && id < 11; ++id) {
      if (constraint.admits(id)) open += std::to_string(id);
    }
    return open;
  };
  const std::vector<int32_t> tag = {2, 3, 4};
  EXPECT_EQ(states_behind("ab", tag, {7, 2, 3, 4}), "7");
  EXPECT_EQ(states_behind("ab", tag, {7, 2, 3, 5}), "7");       // blanks that it does not take
  EXPECT_EQ(states_behind("\n{3}ab", tag, {2, 2, 3, 5}), "9");  // and those that it does
  EXPECT_EQ(states_behind("\n\nab", tag, {2, 3, 6}), "8");      // more than blanks
  EXPECT_EQ(states_behind("ab", {10, 3, 4}, {2, 3, 5}), "7");   // without the tag's own blank
  EXPECT_EQ(states_behind("ab", tag, {7, 2, 3, 9}), "in a thought ");
}

TEST_F(ConstraintTest, AThoughtMayBeginWithTheFirstTokenIfItsTagIsOne) {
  SamplingParams params;
  params.thinking_tags = ThinkingTags{{40}, {41}, -1};
  const auto its_rules = rules(params, "(ab)?");
  const Constraint beginning(*its_rules, params.thinking_tags);
  OpenIds expected = ids({"a", "ab", "<eos>"});
  expected.insert(40);
  EXPECT_EQ(open(beginning), expected);
  EXPECT_EQ(banned(beginning), OpenIds{});
  Constraint thinks = beginning, speaks = beginning;
  thinks.append(40);
  EXPECT_EQ(open(thinks), OpenIds{-1});
  EXPECT_EQ(banned(thinks), OpenIds{kEndOfText});
  thinks.append(41);
  EXPECT_EQ(open(thinks), ids({"a", "ab", "<eos>"}));
  speaks.append(id("a"));
  EXPECT_EQ(open(speaks), ids({"b"}));
  // Of several tokens it can't be told from the text.
  params.thinking_tags->start_ids = {40, 42};
  const auto of_two = rules(params, "(ab)?");
  EXPECT_EQ(open(Constraint(*of_two, params.thinking_tags)), ids({"a", "ab", "<eos>"}));
}

TEST_F(ConstraintTest, ATextThatLeavesItsGrammarHasFailed) {
  const auto its_rules = rules({}, "ab");
  Constraint constraint(*its_rules, {});
  EXPECT_TRUE(constraint.admits(id("a")));
  EXPECT_FALSE(constraint.admits(id("b")));
  EXPECT_FALSE(constraint.admits(45));
  EXPECT_FALSE(constraint.is_stuck());
  constraint.append(id("b"));
  EXPECT_TRUE(constraint.is_stuck());
  EXPECT_EQ(constraint.why_stuck(), "the output no longer follows its grammar");
}

// Whatever may end it: the mask, which costs more, is what it is compared with.
TEST_F(ConstraintTest, KnowsWithoutAMaskWhetherNothingFollows) {
  int num_stuck = 0, num_free = 0;
  for (const char* text : {"ab|c[x-z]", "[0-9]+[x]?", "(ab)?c", "a{3}", "a\\{0,1}é"}) {
    for (const bool ignores_eos : {false, true}) {
      SamplingParams params;
      params.ignore_eos = ignores_eos;
      if (ignores_eos) params.stop_token_ids = {id("b")};
      const auto its_rules = rules(params, text, ignores_eos ? 20 : kNumTokens);
      std::vector<Constraint> seen = {Constraint(*its_rules, {})};
      for (size_t i = 0; i < seen.size() && i < 200; ++i) {
        EXPECT_EQ(seen[i].is_stuck(), seen[i].is_mask_empty()) << text;
        ++(seen[i].is_stuck() ? num_stuck : num_free);
        for (int32_t next = 1; next < 40; ++next) {
          if (!seen[i].admits(next) || its_rules->is_end(next)) continue;
          Constraint behind = seen[i];
          behind.append(next);
          seen.push_back(behind);
        }
      }
    }
  }
  EXPECT_GT(num_stuck, 5);
  EXPECT_GT(num_free, 50);
}

TEST_F(ConstraintTest, AStateWithoutTokensSaysSo) {
  const auto its_rules = rules({}, "a[x-z]");  // of which no token has any
  Constraint constraint(*its_rules, {});
  EXPECT_FALSE(constraint.is_stuck());
  constraint.append(id("a"));
  EXPECT_EQ(open(constraint), OpenIds{});
  EXPECT_TRUE(constraint.is_stuck());
  EXPECT_FALSE(constraint.may_end());
  EXPECT_EQ(constraint.why_stuck(),
            "the grammar leaves no token to draw: none of the vocabulary that is allowed goes on "
            "with this text");
}

TEST_F(ConstraintTest, AnOutgrownAutomatonSaysSo) {
  const auto grammar = compiler_.gbnf(R"(root ::= "{" root? "}")");
  const auto its_rules = table_.rules_of({}, grammar, kNumTokens, {kEndOfText});
  Constraint constraint(*its_rules, {});
  for (int i = 0; i < 10'000'000 && !constraint.is_stuck(); ++i) constraint.append(id("{"));
  EXPECT_EQ(constraint.why_stuck(), Grammar::outgrown_message());
}

// Over walks by several rules, also those of requests that came and went.
TEST_F(ConstraintTest, EqualKeysMeanEqualWords) {
  std::mt19937 rng(5);
  std::map<uint64_t, std::vector<uint32_t>> known;
  size_t num_uses = 0;
  const char* const kTexts[] = {"(ab|c)*d", "[0-9]{1,12}", "(ab|c)*d", ""};
  for (int round = 0; round < 200; ++round) {
    SamplingParams params;
    params.ignore_eos = rng() % 2 == 0;
    if (rng() % 2 == 0) params.stop_token_ids = {40};
    const std::string text = kTexts[rng() % 4];
    if (rng() % 3 == 0 || text.empty()) {
      params.allowed_token_ids = {{0, 1, 2, 3, 4, 10 + static_cast<int32_t>(rng() % 2), 24}};
    }
    if (rng() % 2 == 0) params.thinking_tags = ThinkingTags{{40}, {41}, -1};
    const auto its_rules = rules(params, text);
    Constraint constraint(*its_rules, params.thinking_tags);
    for (int i = 0; i < 12; ++i) {
      const bool is_early = rng() % 2 == 0;
      const TokenMask mask = constraint.mask(is_early);
      if (mask.rules != nullptr) {
        ASSERT_NE(mask.key(), 0U);
        const auto [found, is_new] = known.try_emplace(mask.key(), words(mask));
        EXPECT_EQ(found->second, words(mask));
        ++num_uses;
      }
      int32_t next = static_cast<int32_t>(rng() % 45);
      for (int tries = 0; !constraint.admits(next) && tries < 200; ++tries) {
        next = static_cast<int32_t>(rng() % 45);
      }
      if (its_rules->is_end(next)) break;
      constraint.append(next);
    }
  }
  EXPECT_GT(known.size(), 50U);
  EXPECT_GT(num_uses, 2 * known.size());
}

TEST_F(ConstraintTest, StatesWithEqualMasksHaveEqualKeys) {
  const auto its_rules = rules({}, "a{100}b");
  Constraint constraint(*its_rules, {});
  constraint.append(id("a"));
  const uint64_t key = constraint.mask(false).key();
  for (int i = 0; i < 50; ++i) constraint.append(id("a"));
  EXPECT_EQ(constraint.mask(false).key(), key);
  for (int i = 0; i < 49; ++i) constraint.append(id("a"));
  EXPECT_NE(constraint.mask(false).key(), key);
  EXPECT_EQ(open(constraint), ids({"b"}));
}

TEST_F(ConstraintTest, RulesThatLiveAtTheSameTimeAreOneObject) {
  SamplingParams params;
  const auto first = rules(params, "ab");
  EXPECT_EQ(rules(params, "ab"), first);
  EXPECT_NE(rules(params, "abc"), first);
  params.stop_token_ids = {3};
  const auto stopping = rules(params, "ab");
  EXPECT_NE(stopping, first);
  EXPECT_NE(stopping->number, first->number);
  EXPECT_EQ(rules({}, ""), nullptr);
  const auto number_of = [&] { return rules({}, "abc")->number; };
  const uint64_t gone = number_of();
  EXPECT_NE(number_of(), gone);  // whoever kept words under the old number has others
}

}  // namespace
}  // namespace nanovllm
