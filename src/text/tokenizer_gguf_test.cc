#include "text/tokenizer_gguf.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "io/gguf.h"
#include "io/testing.h"
#include "text/gguf_pre_tokenizers.h"
#include "text/gguf_testing.h"

namespace nanovllm {
namespace {

using testing::GgufWriter;
using text::byte_level_json;
using text::gguf_of;
using text::make_tokenizer;
using text::sentence_piece_json;
using text::TestJson;
using Ids = std::vector<int32_t>;
using Strings = std::vector<std::string>;

std::unique_ptr<Tokenizer> load(const GgufWriter& file) {
  const testing::TempDir folder;
  return Tokenizer::load(folder.write("vocabulary.gguf", file.bytes()));
}

std::string refusal_of(const GgufWriter& file) {
  const Error error = testing::error_of([&] { load(file); });
  const std::string message = error.what();
  const size_t at = message.find("vocabulary.gguf: ");
  EXPECT_NE(at, message.npos) << message;
  return at == message.npos ? message : message.substr(at + 17);
}

GgufWriter byte_level_gguf() {
  return gguf_of(byte_level_json()).add("tokenizer.ggml.pre", std::string("gpt-2"));
}

// A SentencePiece vocabulary of <unk>, <s>, </s> and these tokens with their scores.
GgufWriter scored_gguf(const std::vector<std::pair<std::string, float>>& tokens) {
  Strings all = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {2, 3, 3};
  std::vector<float> scores = {0, 0, 0};
  for (const auto& [token, score] : tokens) {
    all.push_back(token);
    types.push_back(1);
    scores.push_back(score);
  }
  return GgufWriter()
      .add("tokenizer.ggml.model", std::string("llama"))
      .add("tokenizer.ggml.tokens", all)
      .add("tokenizer.ggml.token_type", types)
      .add("tokenizer.ggml.scores", scores);
}

// SentencePiece's vocabulary, whose third token is spelled so.
GgufWriter sentence_piece_with_end(const std::string& end) {
  return GgufWriter()
      .add("tokenizer.ggml.model", std::string("llama"))
      .add("tokenizer.ggml.tokens", Strings{"<unk>", "<s>", end, "a"})
      .add("tokenizer.ggml.token_type", std::vector<int32_t>{2, 3, 3, 1})
      .add("tokenizer.ggml.scores", std::vector<float>{0, 0, 0, 0});
}

Strings spellings(const Tokenizer& tokenizer, const Ids& ids) {
  Strings result;
  for (const int32_t id : ids) result.push_back(tokenizer.id_to_token(id).value_or("?"));
  return result;
}

void expect_same(const Tokenizer& gguf, const Tokenizer& json) {
  EXPECT_EQ(gguf.vocab_size(), json.vocab_size());
  std::mt19937 random(5);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = text::random_text(random, 30);
    const Ids ids = json.encode(text);
    ASSERT_EQ(gguf.encode(text), ids) << text;
    for (const bool skip : {false, true}) {
      ASSERT_EQ(gguf.decode(ids, skip), json.decode(ids, skip)) << text;
    }
  }
}

TEST(GgufTokenizer, ByteLevelEqualsTokenizerJson) {
  expect_same(*load(byte_level_gguf()), *make_tokenizer(byte_level_json()));
}

TEST(GgufTokenizer, SentencePieceEqualsTokenizerJson) {
  expect_same(*load(gguf_of(sentence_piece_json())), *make_tokenizer(sentence_piece_json()));
}

TEST(GgufTokenizer, IsFoundInAFolderToo) {
  const testing::TempDir folder;
  folder.write("vocabulary.gguf", byte_level_gguf().bytes());
  EXPECT_EQ(Tokenizer::load(folder.path())->decode(Ids{'h'}), "h");
}

TEST(GgufTokenizer, BestScoreJoinsFirstAndTheLeftmostAmongEquals) {
  const auto tokenizer = load(scored_gguf(
      {{"▁", 0}, {"a", 0}, {"b", 0}, {"c", 0}, {"ab", -2}, {"bc", -1}, {"aa", -3}, {"ca", -3}}));
  const auto pieces = [&](const char* text) {
    Strings all = spellings(*tokenizer, tokenizer->encode(text, false));
    all.erase(all.begin());  // the separator
    return all;
  };
  EXPECT_EQ(pieces("abc"), (Strings{"a", "bc"}));
  EXPECT_EQ(pieces("abab"), (Strings{"ab", "ab"}));
  EXPECT_EQ(pieces("aaa"), (Strings{"aa", "a"}));
  EXPECT_EQ(pieces("caa"), (Strings{"ca", "a"}));
  EXPECT_EQ(pieces("aaca"), (Strings{"aa", "ca"}));
  // Long enough for the other way of finding pairs.
  std::string text;
  Strings expected;
  for (int i = 0; i < 30; ++i) {
    text += "abc";
    expected.insert(expected.end(), {"a", "bc"});
  }
  EXPECT_EQ(pieces(text.c_str()), expected);
  expected.assign(25, "aa");
  expected.emplace_back("a");
  EXPECT_EQ(pieces(std::string(51, 'a').c_str()), expected);
}

TEST(GgufTokenizer, TokensThatAreNoTextDoNotJoin) {
  // "<s" and ">" spell a control token, "<0x4" and "1>" the byte A.
  TestJson json = sentence_piece_json();
  for (const char* token : {"<", "s", ">", "<s", "0", "x", "4", "1", "<0", "<0x", "<0x4", "1>"}) {
    json["model"]["vocab"][token] = json["model"]["vocab"].size();
  }
  const auto tokenizer = load(gguf_of(json));
  EXPECT_EQ(spellings(*tokenizer, tokenizer->encode("<0x41>", false)),
            (Strings{"▁", "<0x4", "1>"}));
  EXPECT_EQ(tokenizer->encode("A", false), (Ids{*tokenizer->token_to_id("▁"), 3 + 'A'}));
}

TEST(GgufTokenizer, SeparatorsCutWordsOnlyWhereNothingJoinsAcross) {
  for (const bool across : {false, true}) {
    const auto tokenizer =
        load(scored_gguf({{"▁", 0}, {"a", 0}, {"b", 0}, {"▁b", -2}, {across ? "a▁" : "aa", -1}}));
    EXPECT_EQ(spellings(*tokenizer, tokenizer->encode("a b", false)),
              across ? (Strings{"▁", "a▁", "b"}) : (Strings{"▁", "a", "▁b"}));
  }
}

TEST(GgufTokenizer, TheSpaceBeforeTheTextIsAChoice) {
  for (const bool prefix : {false, true}) {
    const auto tokenizer =
        load(gguf_of(sentence_piece_json()).add("tokenizer.ggml.add_space_prefix", prefix));
    EXPECT_EQ(spellings(*tokenizer, tokenizer->encode("llo<s>llo", false)),
              prefix ? (Strings{"▁", "llo", "<s>", "▁", "llo"}) : (Strings{"llo", "<s>", "llo"}));
    for (const char* text : {"llo", " llo", "a llo"}) {
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    }
  }
}

TEST(GgufTokenizer, TypesOfTokens) {
  const auto tokenizer =
      load(GgufWriter()
               .add("tokenizer.ggml.model", std::string("gpt2"))
               .add("tokenizer.ggml.pre", std::string("gpt-2"))
               .add("tokenizer.ggml.tokens", Strings{"a", "b", "<c>", "<u>", "<n>", "", "", "<p>"})
               .add("tokenizer.ggml.token_type", std::vector<int32_t>{1, 0, 3, 4, 5, 1, 1, 2})
               .add("tokenizer.ggml.merges", Strings()));
  EXPECT_EQ(tokenizer->encode("ab<c><u>a"), (Ids{0, 1, 2, 3, 0}));
  EXPECT_EQ(tokenizer->encode("<n><p>"), Ids());
  EXPECT_EQ(tokenizer->vocab_size(), 4);
  EXPECT_TRUE(tokenizer->is_special(2));
  EXPECT_FALSE(tokenizer->is_special(3));
  EXPECT_EQ(tokenizer->decode(Ids{0, 2, 3, 4, 5, 7}), "a<u>");
  EXPECT_EQ(tokenizer->decode(Ids{0, 2, 3, 4, 5, 7}, false), "a<c><u>");
}

TEST(GgufTokenizer, BosAndEosAsTheFileOrThePreTokenizerSays) {
  const auto ends_of = [](GgufWriter file, const char* text) {
    const Ids ids = load(file)->encode(text);
    return std::pair(ids.front() == 1, ids.back() == 2);
  };
  const auto byte_level = [](const char* pre) {
    return gguf_of(byte_level_json())
        .add("tokenizer.ggml.pre", std::string(pre))
        .add("tokenizer.ggml.bos_token_id", 1)
        .add("tokenizer.ggml.eos_token_id", 2);
  };
  for (const auto& [pre, adds_bos] : {std::pair{"gpt-2", false},
                                      {"llama-bpe", true},
                                      {"tekken", true},
                                      {"qwen2", false},
                                      {"deepseek-v3", false}}) {
    EXPECT_EQ(ends_of(byte_level(pre), "hello"), std::pair(adds_bos, false)) << pre;
    for (const bool bos : {false, true}) {
      for (const bool eos : {false, true}) {
        GgufWriter file = byte_level(pre);
        file.add("tokenizer.ggml.add_bos_token", bos).add("tokenizer.ggml.add_eos_token", eos);
        EXPECT_EQ(ends_of(file, "hello"), std::pair(bos, eos)) << pre;
      }
    }
  }
  EXPECT_EQ(ends_of(gguf_of(sentence_piece_json()), "a"), std::pair(true, false));
  EXPECT_EQ(ends_of(gguf_of(sentence_piece_json()).add("tokenizer.ggml.add_bos_token", false), "a"),
            std::pair(false, false));
  // Nothing is added that has no id.
  EXPECT_EQ(load(gguf_of(byte_level_json()).add("tokenizer.ggml.pre", std::string("llama-bpe")))
                ->encode("hello")
                .size(),
            1u);
}

TEST(GgufTokenizer, AllEndsEndTheText) {
  const auto ends_of = [](const Strings& more, std::vector<std::pair<const char*, int>> keys) {
    TestJson json = byte_level_json();
    for (const std::string& token : more) {
      json["model"]["vocab"][token] = json["model"]["vocab"].size();
    }
    GgufWriter file = gguf_of(json).add("tokenizer.ggml.pre", std::string("gpt-2"));
    for (const auto& [key, id] : keys) file.add(std::string("tokenizer.ggml.") + key, id);
    const auto tokenizer = load(file);
    Strings ends = spellings(*tokenizer, tokenizer->eos_token_ids());
    for (const int32_t id : tokenizer->eos_token_ids()) {
      const std::string spelling = tokenizer->id_to_token(id).value();
      // As ordinary tokens they would never be found in a text.
      if (spelling.ends_with("|>") || spelling == "<end_of_turn>") {
        EXPECT_EQ(tokenizer->encode(spelling), Ids{id}) << spelling;
        EXPECT_TRUE(tokenizer->is_special(id)) << spelling;
      }
    }
    return ends;
  };
  EXPECT_EQ(ends_of({}, {}), Strings{"<|end|>"});
  EXPECT_EQ(ends_of({}, {{"eom_token_id", '#'}, {"eot_token_id", '"'}, {"eos_token_id", '!'}}),
            (Strings{"!", "\"", "#", "<|end|>"}));
  EXPECT_EQ(ends_of({"<|return|>"}, {}), Strings{"<|end|>"});
  const Strings ends_of_messages = {"<|return|>", "<|call|>"};
  EXPECT_EQ(ends_of(ends_of_messages, {}), ends_of_messages);
  const Strings all = {"<|im_end|>",      "<|endoftext|>", "<|eot_id|>", "<|eom_id|>",
                       "<|end_of_text|>", "<end_of_turn>", "</s>"};
  Strings expected = all;
  expected.insert(expected.end() - 1, "<|end|>");
  EXPECT_EQ(ends_of(all, {}), expected);
  EXPECT_EQ(load(gguf_of(sentence_piece_json()))->eos_token_ids(), Ids{2});
}

TEST(GgufTokenizer, PreTokenizersCutAsTheModelsOwn) {
  // What Hugging Face's tokenizers makes of their tokenizer.json.
  const std::string text = "It'S aBC XYz été 12345 a=b;/\r\n\n 文字です  ";
  const std::pair<Strings, std::string> kWords[] = {
      {{"gpt-2"}, "It|'|S| aBC| XYz| été| 12345| a|=|b|;/|\r\n\n| 文字です|  "},
      {{"smollm", "starcoder", "refact"},
       "It|'|S| aBC| XYz| été| |1|2|3|4|5| a|=|b|;/|\r\n\n| 文字です|  "},
      {{"llama-bpe", "llama3", "llama-v3", "glm4", "chatglm-bpe", "dbrx", "smaug-bpe"},
       "It|'S| aBC| XYz| été| |123|45| a|=b|;/\r\n\n| 文字です|  "},
      {{"qwen2", "deepseek-r1-qwen", "qwen35"},
       "It|'S| aBC| XYz| été| |1|2|3|4|5| a|=b|;/\r\n\n| 文字です|  "},
      {{"tekken"}, "It|'S| a|BC| XYz| été| |1|2|3|4|5| a|=b|;/\r\n\n| 文字です|  "},
      {{"gpt-4o"}, "It'S| a|BC| XYz| été| |123|45| a|=b|;/\r\n\n| 文字です|  "},
      {{"deepseek-llm"}, "It|'|S| aBC| XYz| é|t|é| |1|2|3|4|5| a|=|b|;/|\r|\n|\n| |文字です|  "},
      {{"deepseek-coder"}, "It|'|S| aBC| XYz| été| |1|2|3|4|5| a|=|b|;/|\r|\n|\n| |文字です|  "},
      {{"deepseek-v3"}, "It|'S| aBC| XYz| été| |123|45| a|=b|;/\r\n\n| |文字です|  "},
  };
  for (const auto& [names, expected] : kWords) {
    for (const std::string& name : names) {
      const text::GgufPreTokenizer pre = text::gguf_pre_tokenizer(name, "x.gguf");
      text::PreTokenizeScratch scratch;
      pre.pre_tokenizer.apply(text, true, scratch);
      std::string words;
      for (const text::Span span : scratch.words.spans) {
        if (!words.empty()) words += '|';
        words += scratch.words.text.substr(span.begin, span.end - span.begin);
      }
      EXPECT_EQ(words, expected) << name;
      EXPECT_TRUE(pre.pre_tokenizer.byte_level()) << name;
      const bool is_qwen = name == "qwen2" || name == "deepseek-r1-qwen" || name == "qwen35";
      EXPECT_EQ(pre.normalizer.empty(), !is_qwen) << name;
      const bool ignores = name.starts_with("llama") || name == "tekken";
      EXPECT_EQ(pre.ignore_merges, ignores) << name;
      EXPECT_EQ(text::gguf_adds_bos(name), ignores) << name;
    }
  }
}

TEST(GgufTokenizer, WithoutAPreTokenizerGpt2sIsTakenAndSaid) {
  for (const bool named : {false, true}) {
    GgufWriter file = gguf_of(byte_level_json());
    if (named) file.add("tokenizer.ggml.pre", std::string("default"));
    ::testing::internal::CaptureStderr();
    const auto tokenizer = load(file);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("tokenizer.ggml.pre does not name a pre-tokenizer"), said.npos) << said;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
    expect_same(*tokenizer, *make_tokenizer(byte_level_json()));
  }
  ::testing::internal::CaptureStderr();
  load(byte_level_gguf());
  load(gguf_of(sentence_piece_json()));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(GgufTokenizer, WhatIsNotSupportedIsRefusedByName) {
  EXPECT_EQ(
      refusal_of(gguf_of(byte_level_json()).add("tokenizer.ggml.pre", std::string("tiktok"))),
      "tokenizer.ggml.pre is 'tiktok', which is not supported (gpt-2, smollm, starcoder, refact, "
      "llama-bpe, llama3, llama-v3, qwen2, deepseek-r1-qwen, qwen35, tekken, gpt-4o, glm4, "
      "chatglm-bpe, dbrx, smaug-bpe, deepseek-llm, deepseek-coder, deepseek-v3 are)");
  EXPECT_EQ(refusal_of(GgufWriter().add("tokenizer.ggml.model", std::string("t5"))),
            "tokenizer.ggml.model is 't5', which is not supported (gpt2 and llama are)");
  EXPECT_EQ(refusal_of(GgufWriter().add("a", 1)), "has no tokenizer.ggml.model");
}

TEST(GgufTokenizer, DamagedVocabulariesAreRefused) {
  const auto gpt2 = [](const Strings& tokens, const Strings& merges) {
    return GgufWriter()
        .add("tokenizer.ggml.model", std::string("gpt2"))
        .add("tokenizer.ggml.pre", std::string("gpt-2"))
        .add("tokenizer.ggml.tokens", tokens)
        .add("tokenizer.ggml.merges", merges);
  };
  const auto llama = [](const Strings& tokens) {
    return GgufWriter()
        .add("tokenizer.ggml.model", std::string("llama"))
        .add("tokenizer.ggml.tokens", tokens);
  };
  const std::string tokens = "tokenizer.ggml.tokens ", merges = "tokenizer.ggml.merges ";
  const std::pair<GgufWriter, std::string> kFiles[] = {
      {gpt2({}, {}), tokens + "has 0 tokens, expected 1 to 16777215"},
      {gpt2({"a", "b", "a"}, {}), tokens + "has 'a' twice, as tokens 0 and 2"},
      {gpt2({"a", "\xFF"}, {}), tokens + "has a token 1 that is not UTF-8"},
      {gpt2({"a", "b", "ab"}, {"a b", "ab"}),
       merges + "has the merge 1, 'ab', expected two tokens with a space between"},
      {gpt2({"a", "b", "ab"}, {" b"}),
       merges + "has the merge 0, ' b', expected two tokens with a space between"},
      {gpt2({"a", "b", "ab"}, {"a "}),
       merges + "has the merge 0, 'a ', expected two tokens with a space between"},
      {gpt2({"a", "b", "ab"}, {"a b ab"}),
       merges + "has the merge 0, 'a b ab', expected two tokens with a space between"},
      {gpt2({"a", "b", "ab"}, {""}),
       merges + "has the merge 0, '', expected two tokens with a space between"},
      {gpt2({"a", "b"}, {"a b"}), merges + "needs the token 'ab', which " + tokens + "lacks"},
      {gpt2({"a", "ac"}, {"a c"}), merges + "needs the token 'c', which " + tokens + "lacks"},
      {gpt2({"a", "b"}, {}).add("tokenizer.ggml.token_type", std::vector<int32_t>{1}),
       "tokenizer.ggml.token_type has 1 entries for 2 tokens"},
      {llama({"a", "b"}), "tokenizer.ggml.scores is not there"},
      {llama({"a", "b"}).add("tokenizer.ggml.scores", std::vector<float>{1, 2, 3}),
       "tokenizer.ggml.scores has 3 entries for 2 tokens"},
      {llama({"a", "<0x-1>"}).add("tokenizer.ggml.token_type", std::vector<int32_t>{1, 6}),
       tokens + "has the token 1, '<0x-1>', for a byte, expected <0x00> to <0xFF>"},
      {llama({"a", "<0x041>"}).add("tokenizer.ggml.token_type", std::vector<int32_t>{1, 6}),
       tokens + "has the token 1, '<0x041>', for a byte, expected <0x00> to <0xFF>"},
  };
  for (const auto& [file, message] : kFiles) EXPECT_EQ(refusal_of(file), message);
  EXPECT_EQ(refusal_of(GgufWriter()
                           .add("tokenizer.ggml.model", std::string("gpt2"))
                           .add("tokenizer.ggml.pre", std::string("gpt-2"))
                           .add("tokenizer.ggml.tokens", Strings{"a"})),
            merges + "is not there");
}

TEST(GgufTokenizer, IdsBeyondTheVocabularyAreRefused) {
  const int count = load(byte_level_gguf())->vocab_size();
  for (const char* name : {"bos", "eos", "eot", "eom", "unknown"}) {
    const std::string key = std::string("tokenizer.ggml.") + name + "_token_id";
    const auto with = [&](int id) {
      return byte_level_gguf().add(key, id).add("tokenizer.ggml.add_bos_token", true);
    };
    load(with(count - 1));
    for (const int id : {count, -1}) {
      EXPECT_EQ(refusal_of(with(id)).find(key + " is " + std::to_string(id)), 0u)
          << refusal_of(with(id));
    }
  }
}

TEST(GgufTokenizer, TheLargestIdMeansNone) {
  static constexpr uint32_t kNone = 4294967295;
  const auto ends_without_eos = [](GgufWriter file) {
    return load(file.add("tokenizer.ggml.eos_token_id", kNone))->eos_token_ids();
  };
  EXPECT_EQ(ends_without_eos(byte_level_gguf()), load(byte_level_gguf())->eos_token_ids());
  // SentencePiece's own is not taken for it; "</s>" ends texts by its spelling.
  EXPECT_EQ(ends_without_eos(sentence_piece_with_end("</s>")), Ids{2});
  EXPECT_EQ(ends_without_eos(sentence_piece_with_end("<e>")), Ids());
  for (const char* name : {"bos", "eot", "eom", "unknown", "padding"}) {
    GgufWriter file = gguf_of(sentence_piece_json());
    file.add(std::string("tokenizer.ggml.") + name + "_token_id", kNone);
    const Ids ids = load(file)->encode("a");
    EXPECT_EQ(ids.front() == 1, std::string_view(name) != "bos") << name;
  }
  EXPECT_EQ(refusal_of(byte_level_gguf().add("tokenizer.ggml.eos_token_id", kNone - 1))
                .find("tokenizer.ggml.eos_token_id is 4294967294"),
            0u);
}

TEST(GgufTokenizer, SpecialTokensForTemplates) {
  const testing::TempDir folder;
  const auto tokens_of = [&](const GgufWriter& file) {
    return text::gguf_special_tokens(Gguf(folder.write("x.gguf", file.bytes())));
  };
  EXPECT_EQ(tokens_of(byte_level_gguf()), Json::object());
  EXPECT_EQ(tokens_of(byte_level_gguf()
                          .add("tokenizer.ggml.padding_token_id", int{'"'})
                          .add("tokenizer.ggml.bos_token_id", int{'!'})),
            (Json{{"bos_token", "!"}, {"pad_token", "\""}}));
  EXPECT_EQ(tokens_of(gguf_of(sentence_piece_json())),
            (Json{{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}}));
}

}  // namespace
}  // namespace nanovllm
