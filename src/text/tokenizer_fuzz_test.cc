// Random damage to what comes from outside: it may be refused, in one sentence, and nothing else.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "base/testing.h"
#include "nanovllm/error.h"
#include "text/detokenizer.h"
#include "text/json_reader.h"
#include "text/regex.h"
#include "text/testing.h"

namespace nanovllm {
namespace {

using text::TestJson;

std::string random_bytes(std::mt19937& random, size_t longest) {
  std::string bytes(random() % (longest + 1), '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(random() % 3 ? "az '\n<|end>\xC3\xE2\x96\x81\xF0\x9F"[random() % 18]
                                          : random());
  }
  return bytes;
}

void use(const Tokenizer& tokenizer, std::mt19937& random) {
  const std::string text = random_bytes(random, 60);
  const auto ids = tokenizer.encode(text);
  for (const int32_t id : ids) EXPECT_LT(id, tokenizer.vocab_size());
  const std::string decoded = tokenizer.decode(ids, false);
  EXPECT_EQ(text::find_invalid_utf8(decoded), decoded.size());
  Detokenizer detokenizer(tokenizer, false);
  std::string joined;
  for (const int32_t id : ids) joined += detokenizer.append(id);
  EXPECT_EQ(joined + detokenizer.finish(), decoded);
}

// Loads and uses it, or fails with an Error of one line. True when it loaded.
bool try_tokenizer(const std::string& json, std::mt19937& random) {
  try {
    const auto tokenizer = Tokenizer::from_json(json, "fuzz");
    use(*tokenizer, random);
    return true;
  } catch (const Error& error) {
    EXPECT_NE(error.code(), ErrorCode::kInternal);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return false;
  }
}

TEST(TokenizerFuzz, DamagedBytesOfTheFile) {
  std::mt19937 random(21);
  for (const TestJson& json : {text::byte_level_json(), text::sentence_piece_json()}) {
    const std::string good = json.dump();
    for (int round = 0; round < 1500; ++round) {
      std::string bad = good;
      for (uint32_t n = 1 + random() % 3; n > 0; --n) {
        const size_t at = random() % bad.size();
        switch (random() % 4) {
          case 0:
            bad[at] = static_cast<char>(random());
            break;
          case 1:
            bad.erase(at, 1 + random() % 20);
            break;
          case 2:
            bad.insert(at, random_bytes(random, 8));
            break;
          default:
            bad[at] = "{}[]\",:0\\n"[random() % 10];
            break;
        }
        if (bad.empty()) bad.push_back(' ');
      }
      try_tokenizer(bad, random);
    }
  }
}

// A random value of the kind that such a file has.
TestJson random_value(std::mt19937& random) {
  static const char* const kValues[] = {"null",
                                        "true",
                                        "false",
                                        "0",
                                        "1",
                                        "-1",
                                        "1e9",
                                        "4294967296",
                                        "\"\"",
                                        "\"▁\"",
                                        "\"a\"",
                                        "[]",
                                        "{}",
                                        "\"Sequence\"",
                                        "\"ByteLevel\"",
                                        "\"Metaspace\"",
                                        "\"Replace\"",
                                        "\"Strip\"",
                                        "\"Fuse\"",
                                        "\"ByteFallback\"",
                                        "\"NFKC\"",
                                        "\"NFD\"",
                                        "\"StripAccents\"",
                                        "\"Precompiled\"",
                                        "\"Whitespace\"",
                                        "\"WhitespaceSplit\"",
                                        "\"Unigram\"",
                                        "\"Lowercase\"",
                                        "\"Split\"",
                                        "\"Digits\"",
                                        "\"Punctuation\"",
                                        "\"Contiguous\"",
                                        "\"Removed\"",
                                        "{\"Regex\": \"[a-z]*\"}",
                                        "{\"Regex\": \"(\"}",
                                        "{\"String\": \"\"}",
                                        "{\"String\": \" \"}"};
  return TestJson::parse(kValues[random() % std::size(kValues)]);
}

void change_one(TestJson& json, std::mt19937& random) {
  TestJson* at = &json;
  while (at->is_structured() && !at->empty() && random() % 5) {
    const size_t step = random() % std::min<size_t>(at->size(), 40);
    auto child = at->begin();
    std::advance(child, static_cast<ptrdiff_t>(step));
    at = &*child;
  }
  *at = random_value(random);
}

TEST(TokenizerFuzz, ChangedValuesOfTheFile) {
  std::mt19937 random(22);
  int loaded = 0;
  for (int round = 0; round < test::full_or_reduced(3000, 1000); ++round) {
    TestJson json = round % 3 == 0   ? text::byte_level_json()
                    : round % 3 == 1 ? text::sentence_piece_json()
                                     : text::unigram_json();
    for (const char* part : {"normalizer", "pre_tokenizer", "decoder"}) {
      if (random() % 3 == 0) change_one(json[part], random);
    }
    if (random() % 4 == 0) change_one(json["added_tokens"], random);
    if (random() % 4 == 0) change_one(json["post_processor"], random);
    if (random() % 4 == 0) change_one(json["model"], random);
    loaded += try_tokenizer(json.dump(), random);
  }
  EXPECT_GT(loaded, 100);
}

TEST(TokenizerFuzz, AnyBytesAsText) {
  std::mt19937 random(23);
  for (const TestJson& json :
       {text::byte_level_json(), text::sentence_piece_json(), text::unigram_json()}) {
    const auto tokenizer = text::make_tokenizer(json);
    for (int round = 0; round < 3000; ++round) use(*tokenizer, random);
  }
}

TEST(TokenizerFuzz, DeepNestingIsRefused) {
  std::mt19937 random(24);
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += R"({"type": "Sequence", "normalizers": [)";
  EXPECT_FALSE(try_tokenizer(R"({"normalizer": )" + deep, random));
  const std::string all_of_it = std::string(300000, '[') + std::string(300000, ']');
  EXPECT_FALSE(try_tokenizer(R"({"normalizer": )" + all_of_it + "}", random));
  EXPECT_FALSE(try_tokenizer(R"({"model": {"x": )" + all_of_it + "}}", random));
  for (const int depth : {16, 17}) {
    TestJson json = text::byte_level_json();
    TestJson nested = {{"type", "NFC"}};
    for (int i = 0; i < depth; ++i) nested = {{"type", "Sequence"}, {"normalizers", {nested}}};
    json["normalizer"] = nested;
    EXPECT_EQ(try_tokenizer(json.dump(), random), depth == 16);
  }
}

TEST(TokenizerFuzz, AnyPatternCompilesOrIsRefused) {
  static const char* const kParts[] = {
      "a",    "é",      "\\s",   "\\S", "\\w",  "\\b",       "\\p{L}",  "\\P{Lu}", "\\p{Han}",
      "[",    "]",      "^",     "-",   "&&",   "[:alpha:]", "(",       ")",       "(?:",
      "(?i)", "(?i:",   "(?=",   "(?!", "(?<=", "|",         "*",       "+",       "?",
      "{2}",  "{1,3}",  "{,2}",  "\\",  "\\x",  "\\x{41}",   "\\u4e2d", ".",       "$",
      "\\R",  "\\k<a>", "(?<a>", "\\1", "(?#",  "\\0",       "\\h"};
  std::mt19937 random(25);
  int compiled = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string pattern;
    for (uint32_t n = random() % 10; n > 0; --n) pattern += kParts[random() % std::size(kParts)];
    try {
      const text::Regex regex(pattern, "fuzz");
      ++compiled;
      const std::string text = text::random_text(random, 10);
      if (const auto match = regex.find(text, 0)) {
        EXPECT_LE(match->begin, match->end) << pattern;
        EXPECT_LE(match->end, text.size());
      }
    } catch (const Error& error) {
      EXPECT_NE(error.code(), ErrorCode::kInternal);
    }
  }
  EXPECT_GT(compiled, 2000);
}

TEST(Regex, PatternThatBacktracksForeverIsStopped) {
  const text::Regex regex("(a+)+$", "here");
  try {
    regex.find(std::string(64, 'a') + "b", 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("(a+)+$"), std::string::npos);
  }
}

// The reader takes exactly the documents that a strict parser takes.
void read_value(text::JsonReader& reader) {
  std::string name;
  bool first = true;
  if (reader.peek() == '{') {
    reader.begin('{');
    while (reader.next_member(first, name)) read_value(reader);
  } else if (reader.peek() == '[') {
    reader.begin('[');
    while (reader.next_element(first)) read_value(reader);
  } else if (reader.peek() == '"') {
    reader.string();
  } else {
    reader.unsigned_integer();
  }
}

TEST(JsonReaderFuzz, TakesWhatAStrictParserTakes) {
  static const char* const kParts[] = {"{",
                                       "}",
                                       "[",
                                       "]",
                                       ",",
                                       ":",
                                       "\"a\"",
                                       "\"\\n\"",
                                       "1",
                                       "0",
                                       " ",
                                       "\"\\u00e9\"",
                                       "\"\\ud83d\\ude00\"",
                                       "\"\\ud83d\"",
                                       "\"",
                                       "\\"};
  // Under AddressSanitizer each of the many exceptions takes half a millisecond.
  constexpr int kRounds = test::full_or_reduced(100000, 20000);
  std::mt19937 random(26);
  int accepted = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::string document = random() % 2 ? "[" : "{\"k\":";
    for (uint32_t n = random() % 6; n > 0; --n) document += kParts[random() % std::size(kParts)];
    document += document[0] == '[' ? "]" : "}";
    bool ours = true;
    const std::string origin = "fuzz";
    try {
      text::JsonReader reader(document, origin);
      read_value(reader);
      reader.end();
    } catch (const Error&) {
      ours = false;
    }
    accepted += ours;
    ASSERT_EQ(ours, nlohmann::json::accept(document)) << document;
  }
  EXPECT_GT(accepted, kRounds / 100);
}

}  // namespace
}  // namespace nanovllm
