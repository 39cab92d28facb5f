#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "text/testing.h"

namespace nanovllm {
namespace {

using text::TestJson;

// Every way of decoding: byte level, SentencePiece and chains that only a stream finds hard.
std::vector<TestJson> all_tokenizers() {
  std::vector<TestJson> all = {text::byte_level_json(), text::sentence_piece_json()};
  for (const char* decoder :
       {"null", R"({"type": "ByteFallback"})", R"({"type": "Fuse"})",
        R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})",
        R"({"type": "Strip", "content": "▁", "start": 1, "stop": 0})",
        R"({"type": "Sequence", "decoders": [{"type": "Fuse"},
            {"type": "Strip", "content": "▁", "start": 2, "stop": 0}]})",
        R"({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Replace", "pattern": {"String": "llol"}, "content": "-"}]})",
        R"({"type": "Sequence", "decoders": [{"type": "Fuse"},
            {"type": "Replace", "pattern": {"Regex": "l+"}, "content": "L"}]})",
        R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]})"}) {
    TestJson json = text::sentence_piece_json();
    json["decoder"] = TestJson::parse(decoder);
    all.push_back(std::move(json));
  }
  return all;
}

TEST(Detokenizer, PiecesJoinToTheWholeForAnyIds) {
  std::mt19937 random(11);
  for (const TestJson& json : all_tokenizers()) {
    const auto tokenizer = text::make_tokenizer(json);
    for (int round = 0; round < 400; ++round) {
      const bool skip = round % 2;
      const int32_t range = round % 3 ? tokenizer->vocab_size() + 2 : 262;
      std::vector<int32_t> ids(random() % 40);
      for (int32_t& id : ids) id = static_cast<int32_t>(random()) % range;
      Detokenizer detokenizer(*tokenizer, skip);
      std::string joined;
      for (const int32_t id : ids) {
        const std::string piece = detokenizer.append(id);
        ASSERT_EQ(text::find_invalid_utf8(piece), piece.size()) << "half a character";
        joined += piece;
      }
      joined += detokenizer.finish();
      ASSERT_EQ(joined, tokenizer->decode(ids, skip))
          << json["decoder"] << ::testing::PrintToString(ids);
    }
  }
}

TEST(Detokenizer, TextComesBackThroughTheStream) {
  std::mt19937 random(12);
  for (const TestJson& json : {text::byte_level_json(), text::sentence_piece_json()}) {
    const auto tokenizer = text::make_tokenizer(json);
    for (int round = 0; round < 300; ++round) {
      std::string text = text::random_text(random, 30);
      // The separator itself decodes to a space.
      for (size_t at; (at = text.find("▁")) != text.npos;) text.replace(at, 3, 1, '_');
      Detokenizer detokenizer(*tokenizer, false);
      std::string joined;
      for (const int32_t id : tokenizer->encode(text, false)) joined += detokenizer.append(id);
      ASSERT_EQ(joined + detokenizer.finish(), text);
    }
  }
}

TEST(Detokenizer, CharactersAreHeldBackUntilTheyAreWhole) {
  const auto tokenizer = text::make_tokenizer(text::byte_level_json());
  Detokenizer detokenizer(*tokenizer, true);
  const auto ids = tokenizer->encode("😀a");  // F0 9F, 98, 80, a
  ASSERT_EQ(ids.size(), 4u);
  EXPECT_EQ(detokenizer.append(ids[0]), "");
  EXPECT_EQ(detokenizer.append(ids[1]), "");
  EXPECT_EQ(detokenizer.append(ids[2]), "😀");
  EXPECT_EQ(detokenizer.append(ids[3]), "a");
  EXPECT_EQ(detokenizer.append(ids[0]), "");
  EXPECT_EQ(detokenizer.append(ids[3]), "\uFFFDa");
  EXPECT_EQ(detokenizer.append(ids[0]), "");
  EXPECT_EQ(detokenizer.finish(), "\uFFFD");
}

TEST(Detokenizer, LeadingSpaceGoesOnlyAtTheStart) {
  const auto tokenizer = text::make_tokenizer(text::sentence_piece_json());
  Detokenizer detokenizer(*tokenizer, true);
  const int32_t hello = tokenizer->token_to_id("▁hello").value();
  EXPECT_EQ(detokenizer.append(1), "");
  EXPECT_EQ(detokenizer.append(hello), "hello");
  EXPECT_EQ(detokenizer.append(hello), " hello");
}

std::string text_after(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt,
                       const std::vector<int32_t>& ids, bool skip_special_tokens = true) {
  Detokenizer detokenizer(tokenizer, skip_special_tokens, prompt);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.append(id);
  return text + detokenizer.finish();
}

TEST(Detokenizer, AfterAPromptComesWhatTheIdsAddToItsText) {
  std::mt19937 random(14);
  const std::vector<TestJson> all = all_tokenizers();
  for (size_t i = 0; i < 6; ++i) {  // the others replace or strip what lies on both sides
    const auto tokenizer = text::make_tokenizer(all[i]);
    size_t num_compared = 0;
    for (int round = 0; round < 1000; ++round) {
      const bool skip = round % 2;
      const auto random_ids = [&] {
        std::vector<int32_t> ids(random() % 12);
        for (int32_t& id : ids) {
          // Mostly what is no single byte, as random bytes make no characters.
          const int32_t first = random() % 4 ? tokenizer->vocab_size() - 22 : 0;
          id = first + static_cast<int32_t>(random()) % 24;
        }
        return ids;
      };
      const std::vector<int32_t> prompt = random_ids(), ids = random_ids();
      std::vector<int32_t> both = prompt;
      both.insert(both.end(), ids.begin(), ids.end());
      const std::string before = tokenizer->decode(prompt, skip),
                        whole = tokenizer->decode(both, skip);
      if (before.ends_with("\uFFFD") || !whole.starts_with(before)) continue;
      ++num_compared;
      ASSERT_EQ(text_after(*tokenizer, prompt, ids, skip), whole.substr(before.size()))
          << all[i]["decoder"] << ::testing::PrintToString(prompt) << ::testing::PrintToString(ids);
    }
    EXPECT_GT(num_compared, 300u) << all[i]["decoder"];
  }
}

TEST(Detokenizer, NothingOfThePromptComesBackWhateverTheDecoderHolds) {
  for (const TestJson& json : all_tokenizers()) {
    const auto tokenizer = text::make_tokenizer(json);
    const auto id = [&](const char* token) { return tokenizer->token_to_id(token).value(); };
    const std::string text =
        text_after(*tokenizer, {id("h"), id("e"), id("ll")}, {id("a"), id("d")});
    EXPECT_EQ(text, json["decoder"].is_null() ? " a d" : "ad") << json["decoder"];
  }
}

TEST(Detokenizer, ACharacterBelongsToThePromptOnlyWhenItIsWholeThere) {
  const auto byte_level = text::make_tokenizer(text::byte_level_json());
  const std::vector<int32_t> emoji = byte_level->encode("😀");  // F0 9F, 98, 80
  EXPECT_EQ(text_after(*byte_level, emoji, byte_level->encode("a")), "a");
  EXPECT_EQ(text_after(*byte_level, {emoji[0]}, {emoji[1], emoji[2]}), "😀");
  EXPECT_EQ(text_after(*byte_level, {emoji[0]}, byte_level->encode("a")), "\uFFFDa");

  const auto sentence_piece = text::make_tokenizer(text::sentence_piece_json());
  const auto byte = [](int value) { return 3 + value; };
  const int32_t a = sentence_piece->token_to_id("a").value();
  const std::vector<int32_t> two = {a, byte(0xE6), byte(0x96), byte(0x87), byte(0xE6), byte(0x96)};
  const std::vector<int32_t> one(two.begin(), two.end() - 2);
  EXPECT_EQ(text_after(*sentence_piece, one, {a}), "a");
  EXPECT_EQ(text_after(*sentence_piece, one, {byte(0xC3), byte(0xA9), a}), "éa");
  EXPECT_EQ(text_after(*sentence_piece, two, {byte(0x87), a}), "文a");
  EXPECT_EQ(text_after(*sentence_piece, {a, byte(0xF0), byte(0x9F), byte(0x98)}, {byte(0x80), a}),
            "😀a");
}

// A run of bytes that is no UTF-8 has a U+FFFD for each of them, wherever the prompt cuts it.
TEST(Detokenizer, AfterAPromptInARunOfBytesComesTheEndOfTheWholeText) {
  std::mt19937 random(15);
  const std::vector<TestJson> all = all_tokenizers();
  const std::vector<std::string> parts = {"文", "é", "😀", "\xE6", "\xFF", "\x96", "\x87", "A"};
  for (const size_t i : {size_t{1}, size_t{3}}) {
    const auto tokenizer = text::make_tokenizer(all[i]);
    const int32_t bos = 1, a = tokenizer->token_to_id("a").value();
    int num_broken = 0;
    for (int round = 0; round < 3000; ++round) {
      std::vector<int32_t> whole;
      for (size_t n = random() % 9; n > 0; --n) {
        const size_t part = random() % (parts.size() + 2);
        if (part < parts.size()) {
          for (const char c : parts[part]) whole.push_back(3 + static_cast<unsigned char>(c));
        } else {
          whole.push_back(part == parts.size() ? a : bos);  // a special token ends no run
        }
      }
      const std::string text = tokenizer->decode(whole, true);
      num_broken += text.find("\uFFFD") != text.npos;
      for (size_t cut = 0; cut <= whole.size(); ++cut) {
        const auto middle = whole.begin() + static_cast<std::ptrdiff_t>(cut);
        const std::string after =
            text_after(*tokenizer, {whole.begin(), middle}, {middle, whole.end()});
        ASSERT_TRUE(text.ends_with(after)) << cut << ::testing::PrintToString(whole);
      }
    }
    EXPECT_GT(num_broken, 1000);
    EXPECT_LT(num_broken, 2900);
  }
}

TEST(Detokenizer, APromptWithoutTextLeavesTheBeginningToTheIds) {
  const auto tokenizer = text::make_tokenizer(text::sentence_piece_json());
  const int32_t bos = 1, hello = tokenizer->token_to_id("▁hello").value();
  EXPECT_EQ(text_after(*tokenizer, {bos}, {hello}), "hello");
  EXPECT_EQ(text_after(*tokenizer, {bos}, {hello}, false), " hello");
  EXPECT_EQ(text_after(*tokenizer, {hello, bos, bos, bos, bos, bos}, {hello}), " hello");
}

// --- stop strings ---

struct Found {
  std::string text;
  int matched = -1;
};

// By definition: the stop that ends first, the longest of those that end there. None ends in the
// first `passed_over` bytes.
Found find_stop(const std::string& text, const std::vector<std::string>& stops, bool include,
                size_t passed_over) {
  for (size_t end = passed_over + 1; end <= text.size(); ++end) {
    int best = -1;
    for (size_t i = 0; i < stops.size(); ++i) {
      if (stops[i].empty() || !std::string_view(text).substr(0, end).ends_with(stops[i])) continue;
      if (best < 0 || stops[i].size() > stops[best].size()) best = static_cast<int>(i);
    }
    if (best >= 0) return {text.substr(0, include ? end : end - stops[best].size()), best};
  }
  return {text, -1};
}

// Bytes at the end of `text` that begin a stop.
size_t must_hold(const std::string& text, const std::vector<std::string>& stops) {
  size_t hold = 0;
  for (const std::string& stop : stops) {
    for (size_t n = 1; n < stop.size() && n <= text.size(); ++n) {
      if (text.ends_with(stop.substr(0, n))) hold = std::max(hold, n);
    }
  }
  return hold;
}

TEST(StopStringMatcher, FindsTheSameHoweverTextIsCutAndHoldsNoMoreThanItMust) {
  std::mt19937 random(13);
  const auto word = [&](size_t longest) {
    std::string text;
    for (size_t n = random() % (longest + 1); n > 0; --n) text += "ab\n"[random() % 3];
    return text;
  };
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops(random() % 4);
    for (std::string& stop : stops) stop = word(5);
    const std::string text = word(20);
    const bool include = random() % 2;
    const size_t passed_over = random() % 2 ? random() % (text.size() + 1) : 0;
    StopStringMatcher matcher(stops, include);
    std::string shown, given;
    int matched = -1;
    while (given.size() < text.size() && matched < 0) {
      const bool may_match = given.size() >= passed_over;
      const size_t end = may_match ? text.size() : passed_over;
      const std::string piece =
          text.substr(given.size(), std::min<size_t>(random() % 4, end - given.size()));
      given += piece;
      const auto result = matcher.append(piece, may_match);
      shown += result.text;
      matched = result.matched;
      if (matched < 0) {
        ASSERT_EQ(shown.size(), given.size() - must_hold(given, stops));
      }
    }
    const Found expected = find_stop(text, stops, include, passed_over);
    EXPECT_EQ(matcher.append(matched < 0 ? "" : "more").text, "");
    shown += matcher.finish();
    ASSERT_EQ(matched, expected.matched) << text;
    ASSERT_EQ(shown, expected.text);
  }
}

TEST(StopStringMatcher, TakesLinearTime) {
  const std::string stop = std::string(100000, 'a') + "b";
  StopStringMatcher matcher({stop}, false);
  size_t shown = 0;
  for (int i = 0; i < 1000000; ++i) shown += matcher.append("a").text.size();
  EXPECT_EQ(shown, 900000u);
  EXPECT_EQ(matcher.append("b").matched, 0);
}

}  // namespace
}  // namespace nanovllm
