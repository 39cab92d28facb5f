// What may be said of a text's tokens without making them all.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "text/testing.h"
#include "text/unicode_normalize.h"

namespace nanovllm {
namespace {

using text::append_utf8;
using text::byte_level_json;
using text::decode_utf8;
using text::make_tokenizer;
using text::NormalForm;
using text::sentence_piece_json;
using text::TestJson;
using text::unigram_json;
using text::utf8_length;
using Ids = std::vector<int32_t>;

TestJson with(TestJson json, const char* part, const char* value) {
  json[part] = TestJson::parse(value);
  return json;
}

std::optional<size_t> bound_with(const TestJson& json, const char* part, const char* value) {
  return make_tokenizer(with(json, part, value))->max_bytes_per_token();
}

TestJson with_flag(const char* flag) {
  TestJson json = byte_level_json();
  json["added_tokens"].back()[flag] = true;
  return json;
}

TestJson with_unknown(bool fuse) {
  TestJson json = sentence_piece_json();
  json["model"]["byte_fallback"] = false;
  json["model"]["fuse_unk"] = fuse;
  return json;
}

TEST(TokenizerBounds, ATokenIsAsLongAsTheLongestThatThereIs) {
  EXPECT_EQ(make_tokenizer(byte_level_json())->max_bytes_per_token(), 7u);  // <|end|>
  TestJson json = byte_level_json();
  json["added_tokens"].clear();
  EXPECT_EQ(make_tokenizer(json)->max_bytes_per_token(), 5u);  // hello
  json["model"]["vocab"]["ĠĠĠĠĠĠ"] = 300;                      // six bytes in twice as many
  EXPECT_EQ(make_tokenizer(json)->max_bytes_per_token(), 6u);
  EXPECT_EQ(make_tokenizer(sentence_piece_json())->max_bytes_per_token(), 8u);  // ▁hello
}

TEST(TokenizerBounds, NormalizersThatShrinkTextCountAsOftenAsTheyDo) {
  const TestJson json = byte_level_json();
  for (const char* form : {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"}) {
    EXPECT_EQ(bound_with(json, "normalizer", fmt::format(R"({{"type":"{}"}})", form).c_str()), 28u)
        << form;
  }
  EXPECT_EQ(bound_with(json, "normalizer", R"({"type":"Prepend","prepend":"a"})"), 7u);
  const auto replaced = [&](const char* pattern, const char* content) {
    return bound_with(
        json, "normalizer",
        fmt::format(R"({{"type":"Replace","pattern":{},"content":"{}"}})", pattern, content)
            .c_str());
  };
  EXPECT_EQ(replaced(R"({"String":"a"})", "bb"), 7u);
  EXPECT_EQ(replaced(R"({"String":"abc"})", "de"), 14u);
  EXPECT_EQ(replaced(R"({"String":"abcde"})", "f"), 35u);
  EXPECT_EQ(replaced(R"({"String":"a"})", ""), std::nullopt);
  EXPECT_EQ(replaced(R"({"Regex":" {2,}"})", " "), std::nullopt);
  EXPECT_EQ(bound_with(json, "normalizer", R"({"type":"Sequence","normalizers":[{"type":"NFC"},
                       {"type":"Replace","pattern":{"String":"ab"},"content":"c"}]})"),
            56u);
}

TEST(TokenizerBounds, ThereIsNoneWhereAnyAmountOfTextIsOneTokenOrNone) {
  const TestJson json = byte_level_json();
  for (const char* normalizer :
       {R"({"type":"StripAccents"})", R"({"type":"Strip","strip_left":true,"strip_right":true})"}) {
    EXPECT_EQ(bound_with(json, "normalizer", normalizer), std::nullopt) << normalizer;
  }
  EXPECT_EQ(make_tokenizer(with_flag("lstrip"))->max_bytes_per_token(), std::nullopt);
  EXPECT_EQ(make_tokenizer(with_flag("rstrip"))->max_bytes_per_token(), std::nullopt);
  EXPECT_EQ(make_tokenizer(with_flag("single_word"))->max_bytes_per_token(), 7u);
  EXPECT_EQ(bound_with(sentence_piece_json(), "pre_tokenizer", R"({"type":"WhitespaceSplit"})"),
            std::nullopt);
  EXPECT_EQ(make_tokenizer(with_unknown(true))->max_bytes_per_token(), std::nullopt);
  EXPECT_EQ(make_tokenizer(with_unknown(false))->max_bytes_per_token(), 32u);  // 4 x 8
  TestJson dropping = with_unknown(false);
  dropping["model"]["unk_token"] = nullptr;
  EXPECT_EQ(make_tokenizer(dropping)->max_bytes_per_token(), std::nullopt);
  EXPECT_EQ(make_tokenizer(unigram_json())->max_bytes_per_token(), std::nullopt);
  TestJson unigram = with(unigram_json(), "normalizer", "null");
  EXPECT_EQ(make_tokenizer(unigram)->max_bytes_per_token(), 8u);
  unigram["model"]["byte_fallback"] = false;  // unknown characters in a row are one token
  EXPECT_EQ(make_tokenizer(unigram)->max_bytes_per_token(), std::nullopt);
}

TEST(TokenizerBounds, NoTextHasFewerTokens) {
  std::vector<std::unique_ptr<Tokenizer>> tokenizers;
  tokenizers.push_back(make_tokenizer(byte_level_json()));
  tokenizers.push_back(make_tokenizer(sentence_piece_json()));
  tokenizers.push_back(make_tokenizer(with_unknown(false)));
  tokenizers.push_back(make_tokenizer(with(unigram_json(), "normalizer", "null")));
  for (const char* form : {"NFC", "NFKC", "NFD", "NFKD", "Lowercase"}) {
    const std::string normalizer = fmt::format(R"({{"type":"{}"}})", form);
    tokenizers.push_back(make_tokenizer(with(byte_level_json(), "normalizer", normalizer.c_str())));
  }
  std::mt19937 random(5);
  std::vector<std::string> texts = {"hellohellohello",
                                    "<|end|><|end|>",
                                    "\u212A\u212A\u1FEF",
                                    "\u1100\u1161\u11A8\u1100\u1161\u11A8",
                                    "U\u0308\u0304",
                                    "\U0001D400\u030A\u0301",
                                    "zzzz",
                                    "\U0001F600\U0001F600"};
  for (int i = 0; i < 300; ++i) texts.push_back(text::random_text(random, 30));
  for (const auto& tokenizer : tokenizers) {
    const auto bound = tokenizer->max_bytes_per_token();
    ASSERT_TRUE(bound);
    for (const std::string& one : texts) {
      EXPECT_LE(one.size(), tokenizer->encode(one, false).size() * *bound) << one;
    }
  }
}

// See kMaxUnicodeShrinkage.
TEST(TokenizerBounds, NoNormalFormMakesTextShorterThanSaid) {
  const auto form_of = [](const std::string& text, NormalForm form) {
    std::string out;
    return text::normalize_unicode(text, form, out) ? out : text;
  };
  const auto for_each_character = [](const auto& act) {
    for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
      if (c >= 0xD800 && c <= 0xDFFF) continue;
      std::string character;
      append_utf8(character, c);
      act(character);
    }
  };
  for (const auto& [composed, parts] :
       {std::pair{NormalForm::kNfc, NormalForm::kNfd}, {NormalForm::kNfkc, NormalForm::kNfkd}}) {
    std::map<uint32_t, size_t> longest;  // by the first part, bytes
    for_each_character([&](const std::string& character) {
      const std::string decomposed = form_of(character, parts);
      ASSERT_FALSE(decomposed.empty());
      size_t& most = longest[decode_utf8(decomposed.data())];
      most = std::max(most, character.size());
    });
    for_each_character([&](const std::string& character) {
      if (form_of(character, composed) != character) return;
      const std::string decomposed = form_of(character, NormalForm::kNfd);
      size_t sum = 0;
      for (size_t i = 0; i < decomposed.size(); i += utf8_length(decomposed[i])) {
        sum += longest[decode_utf8(decomposed.data() + i)];
      }
      ASSERT_LE(sum, text::kMaxUnicodeShrinkage * character.size()) << character;
    });
  }
}

TEST(TokenizerBounds, TooLongATextIsGivenUpBehindWhatIsWanted) {
  std::vector<std::unique_ptr<Tokenizer>> tokenizers;
  tokenizers.push_back(make_tokenizer(byte_level_json()));
  tokenizers.push_back(make_tokenizer(sentence_piece_json()));
  tokenizers.push_back(make_tokenizer(unigram_json()));
  TestJson normalized = byte_level_json();
  normalized["added_tokens"].push_back(text::added_token_json("aa", false));
  normalized["added_tokens"].back()["normalized"] = true;
  tokenizers.push_back(make_tokenizer(normalized));
  std::mt19937 random(6);
  for (const auto& tokenizer : tokenizers) {
    for (int i = 0; i < 100; ++i) {
      const std::string one = text::random_text(random, 60);
      const Ids all = tokenizer->encode(one, false);
      EXPECT_EQ(tokenizer->encode(one, false, all.size()), all);
      for (const size_t most : {size_t{0}, all.size() / 2, all.size() - 1}) {
        if (most >= all.size()) continue;
        const Ids some = tokenizer->encode(one, false, most);
        ASSERT_GT(some.size(), most);
        ASSERT_LE(some.size(), all.size());
        EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
      }
    }
    std::string much;
    for (int i = 0; i < 100'000; ++i) much += "hello <|end|> aa wor ";
    EXPECT_LT(tokenizer->encode(much, false, 1000).size(), 30'000u);
  }
}

}  // namespace
}  // namespace nanovllm
