#include "text/unigram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/testing.h"
#include "nanovllm/error.h"
#include "text/json_reader.h"
#include "text/testing.h"

namespace nanovllm::text {
namespace {

struct Piece {
  std::string text;
  double score;
};

// The definition: all ways to a position are compared, with sums from the left; of equal ones the
// one whose last piece is longest stays. Pieces that are unknown have the id 0.
std::vector<std::pair<std::string, int32_t>> cut_slowly(const std::vector<Piece>& pieces,
                                                        const std::string& text) {
  struct Best {
    double score = 0;
    size_t begin = 0;
    int32_t id = -1;
  };
  double lowest = pieces[0].score;
  for (const Piece& piece : pieces) lowest = std::min(lowest, piece.score);
  std::vector<Best> best(text.size() + 1);
  for (size_t end = 1; end <= text.size(); ++end) {
    for (size_t begin = end > 12 ? end - 12 : 0; begin < end; ++begin) {
      if (begin > 0 && best[begin].id < 0) continue;  // within a character
      const auto offer = [&](double score, int32_t id) {
        const double sum = best[begin].score + score;
        if (best[end].id < 0 || sum > best[end].score) best[end] = {sum, begin, id};
      };
      const std::string part = text.substr(begin, end - begin);
      const auto found = std::find_if(pieces.begin(), pieces.end(),
                                      [&](const Piece& piece) { return piece.text == part; });
      if (found != pieces.end()) {
        offer(found->score, static_cast<int32_t>(found - pieces.begin()));
      } else if (part.size() == static_cast<size_t>(utf8_length(part[0]))) {
        offer(lowest - 10, 0);
      }
    }
  }
  std::vector<std::pair<std::string, int32_t>> cut;
  for (size_t end = text.size(); end > 0; end = best[end].begin) {
    cut.emplace_back(text.substr(best[end].begin, end - best[end].begin), best[end].id);
  }
  std::reverse(cut.begin(), cut.end());
  return cut;
}

// Of the whole text, without bytes: a run of unknown characters is one.
std::vector<int32_t> encode_slowly(const std::vector<Piece>& pieces, const std::string& text) {
  std::vector<int32_t> ids;
  bool in_run = false;
  for (const auto& [part, id] : cut_slowly(pieces, text)) {
    if (id != 0 || !in_run) ids.push_back(id);
    in_run = id == 0;
  }
  return ids;
}

TestJson json_of(const std::vector<Piece>& pieces) {
  TestJson json = tokenizer_json({{"type", "Unigram"}, {"unk_id", 0}});
  for (const Piece& piece : pieces) json["model"]["vocab"].push_back({piece.text, piece.score});
  return json;
}

std::vector<Piece> random_pieces(std::mt19937& random, bool with_ties) {
  std::vector<Piece> pieces = {{"<unk>", 0}, {"▁", -3.25}};
  for (int i = 0; i < 60; ++i) {
    std::string text = random() % 2 ? "▁" : "";
    for (uint32_t n = 1 + random() % 4; n > 0; --n) text += "ab"[random() % 2];
    if (random() % 8 == 0) text += "é";
    const bool is_new = std::none_of(pieces.begin(), pieces.end(),
                                     [&](const Piece& piece) { return piece.text == text; });
    // One decimal: their sums are equal as numbers, and as doubles they often are not.
    const double score = with_ties ? (random() % 60) / -10.0 : (random() % 1'000'000'000) / -1e8;
    if (is_new) pieces.push_back({text, score});
  }
  return pieces;
}

TEST(Unigram, TakesTheBestSumOfScores) {
  std::mt19937 random(31);
  for (int round = 0; round < 200; ++round) {
    // With ties, a text's first part decides how the sums of the others are rounded, so that a word
    // is not always cut the same.
    const auto pieces = random_pieces(random, round % 2 == 0);
    const auto tokenizer = make_tokenizer(json_of(pieces));
    for (int i = 0; i < 5; ++i) {
      std::string text;
      for (uint32_t n = 1 + random() % 60; n > 0; --n) {
        static constexpr std::string_view kParts[] = {"a", "b", "aa", "é", "▁", "▁a", "▁ab", "中"};
        text += kParts[random() % (round % 3 ? 7 : 8)];
      }
      EXPECT_EQ(tokenizer->encode(text), encode_slowly(pieces, text)) << text;
    }
  }
}

TEST(Unigram, ScoresAreRoundedAsByTheReaderOfTokenizers) {
  const std::string origin = "here";
  JsonReader reader("[-15.774467468261719, 0.1, -3, 2.5E+2, 1e-05, 184467440737095516169, 0e999]",
                    origin);
  reader.begin('[');
  bool first = true;
  // The nearest double of the first is one that is printed as it is written.
  for (const double value :
       {-15.77446746826172, 0.1, -3.0, 250.0, 1e-5, 184467440737095516160.0, 0.0}) {
    ASSERT_TRUE(reader.next_element(first));
    EXPECT_EQ(reader.number(), value);
  }
}

TEST(Unigram, UnknownCharactersAreBytesOrOneToken) {
  std::vector<Piece> pieces = {{"<unk>", 0}, {"a", -1}};
  EXPECT_EQ(make_tokenizer(json_of(pieces))->encode("a中é-a"), (std::vector<int32_t>{1, 0, 1}));
  for (int b = 0; b < 256; ++b) pieces.push_back({fmt::format("<0x{:02X}>", b), -20});
  TestJson json = json_of(pieces);
  EXPECT_EQ(make_tokenizer(json)->encode("aé"), (std::vector<int32_t>{1, 0}));
  json["model"]["byte_fallback"] = true;
  EXPECT_EQ(make_tokenizer(json)->encode("aéa"), (std::vector<int32_t>{1, 2 + 0xC3, 2 + 0xA9, 1}));
  json["model"]["vocab"].erase(2 + 0xA9);  // all bytes of a run or none
  EXPECT_EQ(make_tokenizer(json)->encode("a-éa"), (std::vector<int32_t>{1, 0, 1}));
  EXPECT_EQ(make_tokenizer(json)->encode("a-a"), (std::vector<int32_t>{1, 2 + 0x2D, 1}));
}

TEST(Unigram, WithoutUnknownTokenSaysSo) {
  TestJson json = json_of({{"a", -1}, {"bc", -1}});
  json["model"]["unk_id"] = nullptr;
  const auto tokenizer = make_tokenizer(json);
  EXPECT_EQ(tokenizer->encode("aa"), (std::vector<int32_t>{0, 0}));
  try {
    tokenizer->encode("abc");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("no unk_id"), std::string::npos) << error.what();
  }
}

// Long texts are cut into words block by block, but not where a step before might look further.
TEST(Unigram, BlocksOfLongTextsGiveTheSameWords) {
  std::mt19937 random(34);
  const TestJson nothing = TestJson::parse(R"JSON({"type": "Split", "behavior": "Isolated",
      "invert": false, "pattern": {"String": "nowhere in the text"}})JSON");
  TestJson json = unigram_json();
  json["normalizer"] = nullptr;
  for (const char* steps :
       {R"([{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}])",
        R"([{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}])",
        R"([{"type": "Metaspace", "replacement": "a", "prepend_scheme": "never"}])",
        R"([{"type": "Metaspace", "replacement": " ", "prepend_scheme": "always"}])",
        R"([{"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}])",
        R"([{"type": "Whitespace"},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}])"}) {
    TestJson parts = TestJson::parse(steps);
    json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", parts}};
    const auto in_blocks = make_tokenizer(json);
    parts.insert(parts.begin(), nothing);
    json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", parts}};
    const auto at_once = make_tokenizer(json);
    for (int round = 0; round < 8; ++round) {
      std::string text(random() % 20, ' ');
      while (text.size() < 60'000) {
        text += random_text(random, 20) + std::string(1 + random() % 4, ' ');
        if (random() % 50 == 0) text += std::string(random() % 40'000, 'e');
      }
      EXPECT_EQ(in_blocks->encode(text), at_once->encode(text)) << steps;
    }
  }
}

TEST(Unigram, LongTextsTakeLinearTime) {
  std::mt19937 random(32);
  const auto tokenizer = make_tokenizer(json_of(random_pieces(random, true)));
  for (const std::string unit : {"a", "ab", "▁", "▁a", "中", "é"}) {
    EXPECT_TRUE(test::takes_linear_time(1 << 14, [&](size_t bytes) {
      std::string text;
      while (text.size() < bytes) text += unit;
      EXPECT_FALSE(tokenizer->encode(text).empty());
    })) << unit;
  }
}

}  // namespace
}  // namespace nanovllm::text
