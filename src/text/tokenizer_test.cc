#include "nanovllm/tokenizer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/testing.h"
#include "nanovllm/error.h"
#include "text/testing.h"

namespace nanovllm {
namespace {

using text::byte_level_json;
using text::make_tokenizer;
using text::sentence_piece_json;
using text::TestJson;
using Ids = std::vector<int32_t>;

Ids ids_of(const Tokenizer& tokenizer, const std::vector<std::string>& tokens) {
  Ids ids;
  for (const std::string& token : tokens) ids.push_back(tokenizer.token_to_id(token).value_or(-1));
  return ids;
}

TEST(Tokenizer, EncodesAndDecodesByteLevel) {
  const auto tokenizer = make_tokenizer(byte_level_json());
  const Ids ids = tokenizer->encode("hello  wor<|end|>é");
  EXPECT_EQ(ids, ids_of(*tokenizer, {"hello", "Ġ", "Ġwor", "<|end|>", "Ã©"}));
  EXPECT_EQ(tokenizer->decode(ids, false), "hello  wor<|end|>é");
  EXPECT_EQ(tokenizer->decode(ids, true), "hello  woré");
  EXPECT_TRUE(tokenizer->encode("").empty());
  EXPECT_EQ(tokenizer->decode({}), "");
}

TEST(Tokenizer, EncodesAndDecodesSentencePiece) {
  const auto tokenizer = make_tokenizer(sentence_piece_json());
  const Ids ids = tokenizer->encode("hello world");
  EXPECT_EQ(ids, ids_of(*tokenizer, {"<s>", "▁hello", "▁wor", "l", "d"}));
  EXPECT_EQ(tokenizer->decode(ids), "hello world");
  EXPECT_EQ(tokenizer->encode("", true), Ids{1});
  EXPECT_EQ(tokenizer->encode("z", false), ids_of(*tokenizer, {"▁", "<0x7A>"}));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("  a 😀\n")), "  a 😀\n");
}

TEST(Tokenizer, KnowsItsTokens) {
  const auto tokenizer = make_tokenizer(byte_level_json());
  const int32_t end = tokenizer->token_to_id("<|end|>").value();
  EXPECT_EQ(tokenizer->vocab_size(), end + 1);
  EXPECT_EQ(tokenizer->id_to_token(end), "<|end|>");
  EXPECT_TRUE(tokenizer->is_special(end));
  EXPECT_FALSE(tokenizer->is_special(end - 1));
  for (const int32_t id : {-1, end + 1, INT32_MIN, INT32_MAX}) {
    EXPECT_FALSE(tokenizer->id_to_token(id));
    EXPECT_FALSE(tokenizer->is_special(id));
    EXPECT_EQ(tokenizer->decode(Ids{id}), "");
  }
  EXPECT_FALSE(tokenizer->token_to_id("absent"));
}

TEST(Tokenizer, ReplacesInvalidUtf8) {
  const auto tokenizer = make_tokenizer(byte_level_json());
  EXPECT_EQ(tokenizer->encode("a\xE2\x82 b\xFF"), tokenizer->encode("a\uFFFD b\uFFFD"));
}

TEST(Tokenizer, AddedTokensTakeWhiteSpaceAndRespectWords) {
  TestJson json = byte_level_json();
  const auto add = [&](const char* content, const char* flag) {
    json["added_tokens"].push_back(text::added_token_json(content, false));
    json["added_tokens"].back()[flag] = true;
  };
  add("[L]", "lstrip");
  add("[R]", "rstrip");
  add("wo", "single_word");
  const auto tokenizer = make_tokenizer(json);
  EXPECT_EQ(tokenizer->encode("a \n[L]a"), ids_of(*tokenizer, {"a", "[L]", "a"}));
  EXPECT_EQ(tokenizer->encode("a[R] \u3000a"), ids_of(*tokenizer, {"a", "[R]", "a"}));
  EXPECT_EQ(tokenizer->encode("[R] [L]"), ids_of(*tokenizer, {"[R]", "[L]"}));
  EXPECT_EQ(tokenizer->encode("wo"), ids_of(*tokenizer, {"wo"}));
  EXPECT_EQ(tokenizer->encode("(wo)"), ids_of(*tokenizer, {"(", "wo", ")"}));
  EXPECT_EQ(tokenizer->encode("wor"), ids_of(*tokenizer, {"w", "or"}));
}

TEST(Tokenizer, OfAddedTokensOfOneNormalFormTheFirstIsFound) {
  TestJson json = byte_level_json();
  json["normalizer"] = TestJson::parse(R"({"type": "Lowercase"})");
  for (const char* content : {"[T]", "[t]"}) {
    json["added_tokens"].push_back(text::added_token_json(content, false));
    json["added_tokens"].back()["normalized"] = true;
  }
  const auto tokenizer = make_tokenizer(json);
  EXPECT_EQ(tokenizer->encode("[T][t]"), ids_of(*tokenizer, {"[T]", "[T]"}));
  json["added_tokens"].back()["special"] = true;  // goes before what is not special
  EXPECT_EQ(make_tokenizer(json)->encode("[T][t]"), ids_of(*tokenizer, {"[t]", "[t]"}));
}

TEST(Tokenizer, AddedTokensThatCameAsSpecialStaySo) {
  TestJson json = byte_level_json();
  json["normalizer"] = TestJson::parse(R"({"type": "Lowercase"})");
  for (const bool special : {true, false}) {
    json["added_tokens"].push_back(text::added_token_json("[T]", special));
    json["added_tokens"].back()["normalized"] = !special;
  }
  const auto tokenizer = make_tokenizer(json);
  EXPECT_EQ(tokenizer->encode("[T][t]"), ids_of(*tokenizer, {"[T]", "[", "t", "]"}));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a[T]"), true), "a");
}

TEST(Tokenizer, BlanksThatTakeBlanksAlongTakeLinearTime) {
  TestJson json = byte_level_json();
  json["added_tokens"].push_back(text::added_token_json(" ", false));
  json["added_tokens"].back()["rstrip"] = true;
  const auto tokenizer = make_tokenizer(json);
  // As `tokenizers` has it, which goes on behind the token rather than behind its blanks.
  EXPECT_TRUE(test::takes_linear_time(1 << 13, [&](size_t bytes) {
    EXPECT_EQ(tokenizer->encode(std::string(bytes, ' ') + "a").size(), bytes + 1);
  }));
}

TEST(Tokenizer, BothSpellingsOfMergesAreTheSame) {
  const TestJson pairs = byte_level_json();
  TestJson strings = pairs;
  for (auto& merge : strings["model"]["merges"]) {
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  std::mt19937 random(5);
  const auto first = make_tokenizer(pairs), second = make_tokenizer(strings);
  for (int i = 0; i < 200; ++i) {
    const std::string text = text::random_text(random, 20);
    EXPECT_EQ(first->encode(text), second->encode(text));
  }
}

TEST(Tokenizer, ModelFieldsMayComeInAnyOrder) {
  const TestJson json = sentence_piece_json();
  TestJson reversed = json;
  reversed["model"] = TestJson::object();
  for (auto field = json["model"].rbegin(); field != json["model"].rend(); ++field) {
    reversed["model"][field.key()] = field.value();
  }
  EXPECT_EQ(make_tokenizer(reversed)->encode("hello wor"),
            make_tokenizer(json)->encode("hello wor"));
}

TEST(Tokenizer, LongRunsTakeLinearTime) {
  // Anything quadratic would take hours.
  constexpr size_t kBytes = test::full_or_reduced(1 << 20, 1 << 17);
  const auto bytes = make_tokenizer(byte_level_json());
  const auto pieces = make_tokenizer(sentence_piece_json());
  TestJson json = byte_level_json();
  json["normalizer"] = TestJson::parse(R"({"type": "NFKC"})");
  json["pre_tokenizer"] = TestJson::parse(R"JSON({"type": "Sequence", "pretokenizers": [
      {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
       "[!-/]+[A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
      {"type": "Digits", "individual_digits": true},
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})JSON");
  const auto with_regex = make_tokenizer(json);
  for (const std::string unit :
       {"a", " ", "\n", "7", "'", "😀", "\xCC\x81\xCC\xA3", "中", "<", "a "}) {
    std::string text;
    while (text.size() < kBytes) text += unit;
    EXPECT_EQ(bytes->decode(bytes->encode(text), false), text) << unit;
    EXPECT_EQ(pieces->decode(pieces->encode(text, false), false), text) << unit;
    EXPECT_FALSE(with_regex->encode("e" + text).empty()) << unit;
  }
}

TEST(Tokenizer, ThreadsShareOne) {
  const auto tokenizer = make_tokenizer(byte_level_json());
  std::vector<std::string> texts;
  std::vector<Ids> expected;
  std::mt19937 random(6);
  for (int i = 0; i < 200; ++i) {
    texts.push_back(text::random_text(random, 30));
    expected.push_back(tokenizer->encode(texts.back()));
  }
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < texts.size(); ++i) {
        wrong[t] += tokenizer->encode(texts[i]) != expected[i];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

// Loading `json` fails with `code` and a message that has all of `parts`.
void expect_error(const std::string& json, ErrorCode code, const std::vector<std::string>& parts) {
  try {
    Tokenizer::from_json(json, "here/tokenizer.json");
    ADD_FAILURE() << "loaded: " << json.substr(0, 300);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << error.what() << " lacks " << part;
    }
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
  }
}

TEST(Tokenizer, NamesWhatItDoesNotSupport) {
  const auto with = [](const char* part, const char* value) {
    TestJson json = byte_level_json();
    json[part] = TestJson::parse(value);
    return json.dump();
  };
  const ErrorCode unsupported = ErrorCode::kUnsupported;
  expect_error(with("normalizer", R"({"type": "BertNormalizer"})"), unsupported,
               {"here/tokenizer.json", "normalizer", "BertNormalizer"});
  expect_error(with("normalizer", R"({"type": "Sequence", "normalizers":
                    [{"type": "NFC"}, {"type": "Nmt"}]})"),
               unsupported, {"normalizer.normalizers[1]", "Nmt"});
  expect_error(with("pre_tokenizer", R"({"type": "UnicodeScripts"})"), unsupported,
               {"pre_tokenizer", "UnicodeScripts"});
  expect_error(with("pre_tokenizer", R"JSON({"type": "Split", "behavior": "Isolated",
                    "invert": false, "pattern": {"Regex": "(?~a)"}})JSON"),
               unsupported, {"(?~a)"});
  expect_error(with("post_processor", R"({"type": "RobertaProcessing"})"), unsupported,
               {"post_processor", "RobertaProcessing"});
  expect_error(with("pre_tokenizer", (R"({"type": "Split", "behavior": "Isolated", "invert": false,
                         "pattern": {"Regex": "a)" +
                                      std::string(20'000, '*') + "\"}}")
                                         .c_str()),
               unsupported, {"20001 bytes", "16384"});
  // Every quantifier puts a group around what is before it.
  std::string repeated = "a";
  while (repeated.size() < 16'000) repeated += "{1}";
  expect_error(with("pre_tokenizer", (R"({"type": "Split", "behavior": "Isolated", "invert": false,
                         "pattern": {"Regex": ")" +
                                      repeated + "\"}}")
                                         .c_str()),
               ErrorCode::kCorruptData, {"pre_tokenizer.pattern: the regular", "does not compile"});
  expect_error(with("decoder", R"({"type": "WordPiece"})"), unsupported, {"decoder", "WordPiece"});
  expect_error(with("decoder", R"({"type": "Strip", "content": " ", "start": 0, "stop": 1})"),
               unsupported, {"decoder has a 'stop'"});
  expect_error(with("model", R"({"type": "WordPiece", "vocab": {"a": 0}})"), unsupported,
               {"model", "WordPiece"});
  expect_error(with("model", R"({"type": "BPE", "dropout": 0.1, "vocab": {}, "merges": []})"),
               unsupported, {"dropout"});
}

TEST(Tokenizer, NamesEveryOtherComponentOfThePackage) {
  const std::pair<const char*, std::vector<std::string>> kOthers[] = {
      {"normalizer", {"BertNormalizer", "ByteLevel", "Nmt"}},
      {"pre_tokenizer",
       {"BertPreTokenizer", "CharDelimiterSplit", "FixedLength", "UnicodeScripts"}},
      {"post_processor", {"BertProcessing", "RobertaProcessing"}},
      {"decoder", {"BPEDecoder", "CTC", "WordPiece"}},
      {"model", {"WordLevel", "WordPiece"}}};
  for (const auto& [part, types] : kOthers) {
    for (const std::string& type : types) {
      TestJson json = byte_level_json();
      json[part] = {{"type", type}};
      expect_error(json.dump(), ErrorCode::kUnsupported,
                   {part, fmt::format("'{}', which is not supported", type)});
    }
  }
}

TEST(Tokenizer, SaysWhereAFileIsWrong) {
  const ErrorCode corrupt = ErrorCode::kCorruptData;
  const std::string good = byte_level_json().dump();
  expect_error("", corrupt, {"here/tokenizer.json", "line 1"});
  expect_error("[]", corrupt, {"object"});
  expect_error("{}", corrupt, {"model"});
  expect_error(good.substr(0, good.size() / 2), corrupt, {"line 1"});
  expect_error(good + "x", corrupt, {"after the end"});
  const auto model = [](const char* vocab, const char* merges) {
    return fmt::format(R"({{"model": {{"type": "BPE", "vocab": {}, "merges": {}}}}})", vocab,
                       merges);
  };
  expect_error(model(R"({"a": -1})", "[]"), corrupt, {"non-negative integer"});
  expect_error(model(R"({"a": 1.5})", "[]"), corrupt, {"non-negative integer"});
  expect_error(model(R"({"a": 16777216})", "[]"), corrupt, {"16777216", "above 16777215"});
  expect_error(model(R"({"a": 0})", R"(["a b"])"), corrupt, {"'b'", "vocabulary lacks"});
  expect_error(model(R"({"a": 0, "b": 1})", R"(["a b"])"), corrupt, {"'ab'", "vocabulary lacks"});
  expect_error(model(R"({"a": 0})", R"(["a"])"), corrupt, {"the merge 'a' is not a pair"});
  expect_error(model(R"({"a": 0})", R"([["a", "a", "a"]])"), corrupt, {"not a pair"});
  expect_error(model(R"({"\ud800": 0})", "[]"), corrupt, {"surrogate"});
  expect_error(model("{\"\xFF\": 0}", "[]"), corrupt, {"UTF-8"});
}

TEST(Tokenizer, SaysWhatIsWrongWithAUnigramModel) {
  const auto expect = [](const char* fields, const char* part) {
    expect_error(fmt::format(R"({{"model": {{"type": "Unigram", {}}}}})", fields),
                 ErrorCode::kCorruptData, {"here/tokenizer.json", part});
  };
  expect(R"("vocab": {"a": 0})", "has no 'vocab' of its type");
  expect(R"("unk_id": 0)", "has no 'vocab' of its type");
  expect(R"("vocab": [["a"]])", "no score");
  expect(R"("vocab": [["a", 1, 2]])", "more than a token and its score");
  expect(R"("vocab": [["a", "b"]])", "a number was expected");
  expect(R"("vocab": [["a", -]])", "a number was expected");
  expect(R"("vocab": [["a", 1.2.3]])", "a number was expected");
  expect(R"("vocab": [["a", 1e]])", "an exponent was expected");
  expect(R"("vocab": [["a", 1e400]])", "too large");
  expect(R"("vocab": [["a", 0], ["a", 1]])", "has token 0 twice");
  expect(R"("vocab": [["a", 0]], "unk_id": 1)", "has the unk_id 1 for 1 tokens");
}

TEST(Tokenizer, HelpsWhereTheTypeIsNotWritten) {
  const ErrorCode corrupt = ErrorCode::kCorruptData;
  TestJson json = byte_level_json();
  json["model"].erase("type");
  EXPECT_EQ(make_tokenizer(json)->encode("hello"),
            make_tokenizer(byte_level_json())->encode("hello"));
  json["model"].erase("merges");
  expect_error(json.dump(), corrupt, {"model has no 'type'", "save_pretrained"});
  json = byte_level_json();
  json["normalizer"] = {{"lowercase", true}};
  expect_error(json.dump(), corrupt, {"normalizer has no 'type'", "save_pretrained"});
}

TEST(Tokenizer, SaysWhichPartIsWrong) {
  const auto expect = [](const char* name, TestJson part, const char* what) {
    TestJson json = byte_level_json();
    json[name] = std::move(part);
    expect_error(json.dump(), ErrorCode::kCorruptData, {fmt::format("json: {}", name), what});
  };
  const TestJson digits = {{"type", "Digits"}, {"individual_digits", true}};
  expect("normalizer", TestJson::array(), "normalizer: expected a JSON object, found array");
  expect("normalizer", {{"type", "Prepend"}}, "normalizer: \"prepend\" is missing");
  expect("normalizer", {{"type", "Prepend"}, {"prepend", 3}},
         "normalizer: \"prepend\" is 3, expected a string");
  expect("pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", 1}},
         "pre_tokenizer: \"pretokenizers\" is 1, expected a list");
  expect("pre_tokenizer",
         {{"type", "Sequence"},
          {"pretokenizers", {digits, {{"type", "Split"}, {"pattern", {{"String", 1}}}}}}},
         "pre_tokenizer.pretokenizers[1].pattern: \"String\" is 1, expected a string");
  expect("decoder", {{"type", "Strip"}, {"content", "ab"}, {"start", 1}, {"stop", 0}},
         "decoder: \"content\" is \"ab\", expected one character");
  expect("decoder", {{"type", "Strip"}, {"content", "a"}, {"start", -1}, {"stop", 0}},
         "decoder: \"start\" is -1, expected an integer from 0 to 4294967295");
}

TEST(Tokenizer, MessagesAboutDamagedTextAreUtf8) {
  const std::string damaged = R"({"decoder": ["\u00e9 )" + std::string(5000, 'x') + "\xFF\"]}";
  try {
    Tokenizer::from_json(damaged, "here");
    FAIL();
  } catch (const Error& error) {
    const std::string_view message = error.what();
    EXPECT_EQ(text::find_invalid_utf8(message), message.size());
    EXPECT_LT(message.size(), 200u);
  }
}

TEST(Tokenizer, TheLargestIdIsAccepted) {
  const auto tokenizer = Tokenizer::from_json(
      R"({"model": {"type": "BPE", "vocab": {"a": 16777215}, "merges": []}})", "test");
  EXPECT_EQ(tokenizer->encode("a"), Ids{16777215});
  EXPECT_EQ(tokenizer->vocab_size(), 16777216);
}

class ModelFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              fmt::format("tokenizer_test_{}_{}", ::getpid(),
                          ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const char* name, const std::string& content) {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
  std::unique_ptr<Tokenizer> load() { return Tokenizer::load(folder_.string()); }
  std::filesystem::path folder_;
};

TEST_F(ModelFolder, WithoutTokenizerIsNotFound) {
  try {
    load();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_NE(std::string(error.what()).find("tokenizer.json"), std::string::npos);
  }
}

TEST_F(ModelFolder, LinksThatLeadNowhereAreToldFromFilesThatAreNotThere) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    write("tokenizer.json", byte_level_json().dump());
    EXPECT_NO_THROW(load());
    std::filesystem::remove(folder_ / name);
    std::filesystem::create_symlink("../blobs/0", folder_ / name);
    try {
      load();
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()),
                (folder_ / name).string() + ", a link to ../blobs/0: no such file");
    }
    std::filesystem::remove(folder_ / name);
  }
}

TEST_F(ModelFolder, ConfigurationAddsTokensAndHoldsAgainstTheFile) {
  TestJson json = byte_level_json();
  json["added_tokens"].push_back(text::added_token_json("[R]", false));
  write("tokenizer.json", json.dump());
  const int32_t next = load()->vocab_size();
  TestJson stripping = text::added_token_json("[R]", false);
  stripping["rstrip"] = true;
  // Ids only order the tokens; what is left out of an entry is false.
  write("tokenizer_config.json", TestJson{{"added_tokens_decoder",
                                           {{"7000", {{"content", "[later]"}}},
                                            {"500", text::added_token_json("<extra>", true)},
                                            {"5", {{"content", "h"}, {"special", true}}},
                                            {"0", stripping}}}}
                                     .dump());
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->encode("a<extra>[later]"),
            (Ids{*tokenizer->token_to_id("a"), next, next + 1}));
  EXPECT_TRUE(tokenizer->is_special(next));
  EXPECT_FALSE(tokenizer->is_special(next + 1));
  EXPECT_TRUE(tokenizer->is_special(*tokenizer->token_to_id("h")));
  EXPECT_EQ(tokenizer->vocab_size(), next + 2);
  EXPECT_EQ(tokenizer->encode("a[R] \n a"), ids_of(*tokenizer, {"a", "[R]", "a"}));
}

TEST_F(ModelFolder, SpecialTokensThatTheConfigurationNamesAreAddedTokens) {
  write("tokenizer.json", byte_level_json().dump());
  const int32_t size = load()->vocab_size();
  write("tokenizer_config.json", R"({"eos_token": "he", "pad_token": "nowhere",
      "unk_token": {"content": "ll", "rstrip": true}, "additional_special_tokens": ["or"]})");
  const auto tokenizer = load();
  EXPECT_EQ(tokenizer->encode("aheor"), ids_of(*tokenizer, {"a", "he", "or"}));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("aheor"), true), "a");
  EXPECT_EQ(tokenizer->eos_token_ids(), ids_of(*tokenizer, {"he"}));
  EXPECT_EQ(tokenizer->encode("ll \nl"), ids_of(*tokenizer, {"ll", "l"}));
  EXPECT_EQ(tokenizer->vocab_size(), size);
}

// What transformers 4.57 gives for the text "a", where the template has <s>.
TEST_F(ModelFolder, TheClassDecidesWhetherBosAndEosAreAdded) {
  write("tokenizer.json", sentence_piece_json().dump());
  const Ids text = load()->encode("a", false);
  const auto expect = [&](const char* config, bool bos, bool eos) {
    Ids ids = text;
    if (bos) ids.insert(ids.begin(), 1);
    if (eos) ids.push_back(2);
    write("tokenizer_config.json", config);
    EXPECT_EQ(load()->encode("a"), ids) << config;
    EXPECT_EQ(load()->encode("a", false), text) << config;
  };
  for (const char* name : {"LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer"}) {
    const auto with = [&](const char* more) {
      return fmt::format(R"({{"tokenizer_class": "{}"{}}})", name, more);
    };
    expect(with("").c_str(), true, false);
    expect(with(R"(, "add_bos_token": false)").c_str(), false, false);
    expect(with(R"(, "add_eos_token": true)").c_str(), true, true);
    expect(with(R"(, "add_eos_token": true, "eos_token": {"content": "</s>"})").c_str(), true,
           true);
    expect(with(R"(, "bos_token": "</s>", "add_bos_token": false)").c_str(), false, false);
  }
  // transformers gives <bos> an id that the model does not know.
  expect(R"({"tokenizer_class": "GemmaTokenizer"})", false, false);
  expect(R"({"tokenizer_class": "GemmaTokenizer", "bos_token": "<s>"})", true, false);
  expect(R"({"tokenizer_class": "GPTNeoXTokenizerFast", "bos_token": "<s>"})", false, false);
  // These follow the post-processor.
  for (const char* name : {"PreTrainedTokenizerFast", "Qwen2Tokenizer", "GPT2TokenizerFast"}) {
    expect(fmt::format(R"({{"tokenizer_class": "{}", "add_bos_token": false, "bos_token": "<s>",
                            "add_eos_token": true, "eos_token": "</s>"}})",
                       name)
               .c_str(),
           true, false);
  }
  expect(R"({"add_bos_token": false, "add_eos_token": true, "eos_token": "</s>"})", true, false);
  // Without a template of its own too.
  TestJson json = sentence_piece_json();
  json["post_processor"] = nullptr;
  write("tokenizer.json", json.dump());
  expect(R"({"tokenizer_class": "LlamaTokenizerFast"})", true, false);
  expect(R"({"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": true,
             "bos_token": "<s>"})",
         false, false);
}

TEST_F(ModelFolder, ConfigurationNamesTheEos) {
  write("tokenizer.json", sentence_piece_json().dump());
  EXPECT_EQ(load()->eos_token_ids(), Ids());
  for (const char* config : {R"({"eos_token": "</s>"})",
                             R"({"eos_token": {"content": "</s>"}, "add_eos_token": false})"}) {
    write("tokenizer_config.json", config);
    EXPECT_EQ(load()->eos_token_ids(), Ids{2}) << config;
  }
  for (const char* config : {R"({"eos_token": null})", R"({"eos_token": "<nothing known>"})"}) {
    write("tokenizer_config.json", config);
    EXPECT_EQ(load()->eos_token_ids(), Ids()) << config;
  }
}

// gpt-oss: the configuration names <|return|> alone, and older generation_config.json do too.
TEST_F(ModelFolder, ACallEndsTheTextWhereMessagesHaveChannels) {
  TestJson json = byte_level_json();
  const auto add = [&](const char* token) {
    json["model"]["vocab"][token] = json["model"]["vocab"].size();
    json["added_tokens"].push_back(text::added_token_json(token, true));
    write("tokenizer.json", json.dump());
    return load()->token_to_id(token).value();
  };
  write("tokenizer_config.json", R"({"eos_token": "<|return|>"})");
  const int returns = add("<|return|>");
  EXPECT_EQ(load()->eos_token_ids(), Ids{returns});
  const int call = add("<|call|>");
  EXPECT_EQ(load()->eos_token_ids(), (Ids{returns, call}));
}

TEST_F(ModelFolder, ConfigurationThatIsDamagedIsRefused) {
  write("tokenizer.json", byte_level_json().dump());
  for (const char* config :
       {"{", "[]", R"({"eos_token": ["</s>"]})", R"({"bos_token": 1})",
        R"({"tokenizer_class": "LlamaTokenizer", "bos_token": "<none>"})",
        R"({"additional_special_tokens": "<s>"})", R"({"tokenizer_class": 1})",
        R"({"added_tokens_decoder": []})", R"({"added_tokens_decoder": {"x": {"content": "a"}}})",
        R"({"added_tokens_decoder": {"5": {}}})",
        R"({"added_tokens_decoder": {"5": {"content": "a", "special": 1}}})"}) {
    write("tokenizer_config.json", config);
    try {
      load();
      ADD_FAILURE() << config;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorruptData) << error.what();
      EXPECT_NE(std::string(error.what()).find("tokenizer_config.json"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace nanovllm
