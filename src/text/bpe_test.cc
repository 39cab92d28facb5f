#include "text/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "nanovllm/error.h"
#include "text/utf8.h"

namespace nanovllm::text {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

struct Trained {
  Vocabulary vocabulary;
  std::vector<PairTable::Rule> rules;
};

Trained build(const std::vector<std::string>& tokens, const Pairs& merges) {
  Trained trained;
  std::map<std::string, int32_t> ids;
  const auto add = [&](const std::string& token) {
    const auto [it, is_new] = ids.emplace(token, static_cast<int32_t>(ids.size()));
    if (is_new) trained.vocabulary.add(token, it->second);
    return it->second;
  };
  for (const std::string& token : tokens) add(token);
  for (const auto& [left, right] : merges) {
    const int32_t a = add(left), b = add(right);
    trained.rules.push_back({a, b, add(left + right)});
  }
  trained.vocabulary.finish();
  return trained;
}

std::vector<int32_t> encode(const Bpe& bpe, const std::string& word) {
  ModelScratch scratch;
  std::vector<int32_t> ids;
  bpe.encode(word, false, scratch, ids);
  return ids;
}

// Byte pair encoding by its definition.
std::vector<int32_t> encode_slowly(const Trained& trained, const std::string& word) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < word.size(); i += utf8_length(word[i])) {
    ids.push_back(trained.vocabulary.find(word.substr(i, utf8_length(word[i]))));
  }
  for (;;) {
    size_t best_rank = trained.rules.size(), best = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (trained.rules[rank].left == ids[i] && trained.rules[rank].right == ids[i + 1]) {
          best_rank = rank;
          best = i;
        }
      }
    }
    if (best_rank == trained.rules.size()) return ids;
    ids[best] = trained.rules[best_rank].joined;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

// Random merges over a few letters, ranks in any order.
Pairs random_merges(std::mt19937& random, std::vector<std::string> parts, int count) {
  Pairs merges;
  for (int i = 0; i < count; ++i) {
    std::string left = parts[random() % parts.size()], right = parts[random() % parts.size()];
    if (std::find(merges.begin(), merges.end(), std::pair(left, right)) != merges.end()) continue;
    if (left.size() + right.size() < 12) parts.push_back(left + right);
    merges.emplace_back(std::move(left), std::move(right));
  }
  std::shuffle(merges.begin(), merges.end(), random);
  return merges;
}

TEST(Bpe, MergesAsByDefinitionWhateverTheLength) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    const std::vector<std::string> letters = {"a", "b", "c", "é"};
    const Trained trained = build(letters, random_merges(random, letters, 25));
    const Bpe bpe(trained.vocabulary, trained.rules, {});
    for (const size_t length : {1, 2, 5, 30, 39, 40, 41, 60, 200}) {
      std::string word;
      for (size_t i = 0; i < length; ++i) word += letters[random() % (1 + round % 4)];
      EXPECT_EQ(encode(bpe, word), encode_slowly(trained, word)) << word;
    }
  }
}

TEST(Bpe, CutsOnlyWhereNoMergeReaches) {
  const std::string u = "▁";
  std::mt19937 random(4);
  int cut = 0;
  for (int round = 0; round < 200; ++round) {
    const std::vector<std::string> letters = {"a", "b", u};
    Pairs merges = random_merges(random, letters, 12);
    if (round % 2) {
      std::erase_if(merges, [&](const auto& pair) {
        return pair.second.starts_with(u) && !pair.first.ends_with(u);
      });
      std::erase_if(merges, [&](const auto& pair) {
        return (pair.first + pair.second).find("a" + u) != std::string::npos ||
               (pair.first + pair.second).find("b" + u) != std::string::npos;
      });
    }
    const Trained trained = build(letters, merges);
    const Bpe bpe(trained.vocabulary, trained.rules, {});
    std::string word;
    for (int i = 0; i < 50; ++i) word += letters[random() % 3];
    std::vector<int32_t> parts;
    for (size_t at = 0; at < word.size();) {
      const size_t end = bpe.part_end(word, at);
      ASSERT_GT(end, at);
      cut += end < word.size();
      const auto ids = encode(bpe, word.substr(at, end - at));
      parts.insert(parts.end(), ids.begin(), ids.end());
      at = end;
    }
    EXPECT_EQ(parts, encode(bpe, word)) << word;
  }
  EXPECT_GT(cut, 100);
}

TEST(Bpe, UnknownCharactersFuseOnlyWhenAsked) {
  const Trained trained = build({"<unk>", "a"}, {});
  EXPECT_EQ(encode(Bpe(trained.vocabulary, trained.rules, {.unk_token = "<unk>"}), "xyaz"),
            (std::vector<int32_t>{0, 0, 1, 0}));
  EXPECT_EQ(encode(Bpe(trained.vocabulary, trained.rules, {.unk_token = "<unk>", .fuse_unk = true}),
                   "xyaz"),
            (std::vector<int32_t>{0, 1, 0}));
  // Without an unknown token such characters vanish.
  EXPECT_EQ(encode(Bpe(trained.vocabulary, trained.rules, {}), "xyaz"), std::vector<int32_t>{1});
}

TEST(Bpe, FallsBackToBytesOnlyWhenAllAreThere) {
  const Trained trained = build({"<unk>", "<0xC3>", "<0xA9>"}, {});
  const Bpe bpe(trained.vocabulary, trained.rules, {.unk_token = "<unk>", .byte_fallback = true});
  EXPECT_EQ(encode(bpe, "é"), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(encode(bpe, "è"), std::vector<int32_t>{0});
}

TEST(Bpe, MissingUnknownTokenIsNamed) {
  const Trained trained = build({"a"}, {});
  const Bpe bpe(trained.vocabulary, trained.rules, {.unk_token = "<none>"});
  EXPECT_EQ(encode(bpe, "a"), std::vector<int32_t>{0});
  try {
    encode(bpe, "b");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
    EXPECT_NE(std::string(error.what()).find("<none>"), std::string::npos);
  }
}

TEST(Bpe, IgnoreMergesTakesAWordOfTheVocabularyWhole) {
  Trained trained = build({"a", "b", "abab"}, {{"a", "b"}});
  EXPECT_EQ(encode(Bpe(trained.vocabulary, trained.rules, {}), "abab"),
            (std::vector<int32_t>{3, 3}));
  EXPECT_EQ(encode(Bpe(trained.vocabulary, trained.rules, {.ignore_merges = true}), "abab"),
            std::vector<int32_t>{2});
}

TEST(Vocabulary, LastIdOfASpellingStays) {
  Vocabulary vocabulary;
  vocabulary.add("a", 0);
  vocabulary.add("b", 1);
  vocabulary.add("a", 2);
  vocabulary.finish();
  EXPECT_EQ(vocabulary.find("a"), 2);
  EXPECT_FALSE(vocabulary.has_id(0));
  EXPECT_EQ(vocabulary.spelling(2), "a");
  EXPECT_EQ(vocabulary.size(), 2u);
  EXPECT_EQ(vocabulary.id_end(), 3);
  EXPECT_FALSE(vocabulary.has_id(-1));
  EXPECT_FALSE(vocabulary.has_id(3));
}

TEST(Vocabulary, FindsEveryTokenAndNoOther) {
  Vocabulary vocabulary;
  for (int i = 0; i < 20000; ++i) vocabulary.add(std::to_string(i), i);
  vocabulary.finish();
  for (int i = 0; i < 20000; ++i) EXPECT_EQ(vocabulary.find(std::to_string(i)), i);
  EXPECT_EQ(vocabulary.find("20000"), -1);
  EXPECT_EQ(vocabulary.find(""), -1);
  EXPECT_EQ(Vocabulary().size(), 0u);
}

}  // namespace
}  // namespace nanovllm::text
