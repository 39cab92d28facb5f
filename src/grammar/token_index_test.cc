#include "grammar/token_index.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <random>
#include <thread>

#include "base/testing.h"
#include "grammar/masks.h"
#include "grammar/testing.h"
#include "text/detokenizer.h"
#include "text/testing.h"
#include "text/utf8.h"

namespace nanovllm::grammar {
namespace {

// What the tokens write is what the detokenizer shows, one by one and in a row.
void check_bytes(const Tokenizer& tokenizer, const std::string& name) {
  const std::vector<std::string> bytes = Detokenizer::bytes_of_tokens(tokenizer);
  ASSERT_EQ(bytes.size(), static_cast<size_t>(tokenizer.vocab_size()));
  const std::vector<int32_t> before = tokenizer.encode("x", false);
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    Detokenizer detokenizer(tokenizer, false, before);
    std::string shown = detokenizer.append(id);
    shown += detokenizer.finish();
    ASSERT_EQ(text::replace_invalid_utf8(bytes[id]), shown) << name << ": token " << id;
  }
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const std::vector<int32_t> ids = tokenizer.encode(text::random_text(random, 12), false);
    std::string joined;
    for (const int32_t id : ids) joined += bytes[id];
    Detokenizer detokenizer(tokenizer, false, before);
    std::string shown;
    for (const int32_t id : ids) shown += detokenizer.append(id);
    shown += detokenizer.finish();
    ASSERT_EQ(text::replace_invalid_utf8(joined), shown) << name;
  }
}

void check_bytes_of_all(const std::filesystem::path& folders) {
  for (const auto& folder : std::filesystem::directory_iterator(folders)) {
    if (!folder.is_directory()) continue;
    check_bytes(*Tokenizer::load(folder.path().string()), folder.path().string());
  }
}

TEST(TokenIndex, BytesAreWhatTheDetokenizerShows) {
  check_bytes(demo_tokenizer(), "demo");
  check_bytes(*text::make_tokenizer(text::byte_level_json()), "byte level");
  check_bytes(*text::make_tokenizer(text::sentence_piece_json()), "SentencePiece");
  check_bytes_of_all(test::source_path("tests/data/tokenizers"));
}

// tests/grammar_tokenizers.py runs it.
TEST(TokenIndex, BytesAreWhatTheDetokenizerShowsForOthersToo) {
  const char* const folder = std::getenv("NANOVLLM_TOKENIZERS");
  if (folder == nullptr) GTEST_SKIP() << "NANOVLLM_TOKENIZERS names no folder of tokenizers";
  check_bytes_of_all(folder);
}

TEST(TokenIndex, MarksAreSymbolsAndNoText) {
  text::TestJson json = text::byte_level_json();
  json["added_tokens"].push_back(text::added_token_json("<think>", false));
  json["added_tokens"].push_back(text::added_token_json("    ", false));
  const auto tokenizer = text::make_tokenizer(json);
  const TokenIndex index(*tokenizer);
  EXPECT_EQ(index.bytes(*tokenizer->token_to_id("<think>")), "\xFF<think>\xFF");
  EXPECT_EQ(index.bytes(*tokenizer->token_to_id("<|end|>")), TokenIndex::symbol("<|end|>"));
  EXPECT_EQ(index.bytes(255), "");  // the byte itself, which no text has
  EXPECT_EQ(index.bytes(*tokenizer->token_to_id("    ")), "    ");
  EXPECT_EQ(index.bytes(-1), "");
  EXPECT_EQ(index.bytes(index.vocab_size()), "");
}

TEST(TokenIndex, FindsTheLongestMarksThatATextNames) {
  text::TestJson json = text::byte_level_json();
  for (const char* mark : {"<a>", "<a>b", "<a", "x<a>"}) {
    json["added_tokens"].push_back(text::added_token_json(mark, false));
  }
  const TokenIndex index(*text::make_tokenizer(json));
  const auto symbol = TokenIndex::symbol;
  EXPECT_EQ(index.with_symbols("<<a>b<a>c"), "<" + symbol("<a>b") + symbol("<a>") + "c");
  EXPECT_EQ(index.with_symbols("yx<a<a"), "yx" + symbol("<a") + symbol("<a"));
  EXPECT_EQ(index.with_symbols("x<a>"), symbol("x<a>"));
  EXPECT_EQ(index.with_symbols("plain"), "plain");
  EXPECT_EQ(index.with_symbols(""), "");
}

TEST(TokenIndex, SlicesHoldRunsOfPlainCharacters) {
  const TokenIndex index({"a", "ab", "\"", "a\"", "", "é", "\xC3", "\xA9", "abcdefghijk",
                          "abcdefghijklmnopqrst", "\\n", "\n", "b\xF0\x9F", "a"});
  EXPECT_EQ(index.slice(0), nullptr);
  EXPECT_EQ(index.slice(3), nullptr);
  const auto ids = [](const MaskWords& words) {
    std::vector<int> set;
    for (int id = 0; id < 32; ++id) {
      if ((words[0] >> id & 1) != 0) set.push_back(id);
    }
    return set;
  };
  ASSERT_NE(index.slice(4), nullptr);
  EXPECT_EQ(ids(index.slice(4)->tokens), (std::vector<int>{0, 1, 5, 6, 12, 13}));
  EXPECT_EQ(ids(index.slice(19)->tokens), (std::vector<int>{0, 1, 5, 6, 8, 12, 13}));
  EXPECT_EQ(ids(index.slice(kUnbounded)->tokens), (std::vector<int>{0, 1, 5, 6, 8, 9, 12, 13}));
  EXPECT_EQ(index.longest(), 20u);
}

TEST(TokenIndex, VocabulariesWithoutTextHaveEmptyMasks) {
  const TokenIndex index(std::vector<std::string>{"", ""});
  Syntax syntax;
  const NodeId start = syntax.finish(syntax.literal("a"));
  Automaton automaton(syntax, start, 1 << 20);
  MaskWords words;
  make_mask(automaton, kStart, index, words);
  EXPECT_EQ(words, MaskWords{0});
}

TEST(MaskCache, ForgetsWhatWasUsedLast) {
  constexpr size_t kMaskBytes = 4 * 10 + MaskCache::kEntryBytes;
  MaskCache cache(3 * kMaskBytes);
  const auto mask = [] { return std::make_shared<MaskWords>(10); };
  for (StateId state = 0; state < 3; ++state) cache.add(1, state, mask());
  EXPECT_NE(cache.find(1, 0), nullptr);
  cache.add(2, 0, mask());
  EXPECT_EQ(cache.bytes(), 3 * kMaskBytes);
  EXPECT_EQ(cache.find(1, 1), nullptr);
  EXPECT_NE(cache.find(1, 0), nullptr);
  EXPECT_NE(cache.find(1, 2), nullptr);
  EXPECT_NE(cache.find(2, 0), nullptr);
}

TEST(Grammars, ThoseAskedForLatelyAreKept) {
  const GrammarCompiler compiler(demo_tokenizer());
  const std::weak_ptr<const Grammar> first = compiler.regex("a");
  for (int i = 0; i < 15; ++i) compiler.regex(fmt::format("b{}", i));
  EXPECT_FALSE(first.expired());
  EXPECT_EQ(compiler.regex("a"), first.lock());
  for (int i = 0; i < 15; ++i) compiler.regex(fmt::format("c{}", i));
  EXPECT_FALSE(first.expired());
  compiler.regex("d");
  EXPECT_TRUE(first.expired());
}

// Whoever waits for another thread gives the processor away.
TEST(Grammars, KnownOnesNeedNoThread) {
  const GrammarCompiler compiler(demo_tokenizer());
  const auto num_waits = [] {
    rusage usage;
    EXPECT_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
    return usage.ru_nvcsw;
  };
  // The other thread may be done before anybody waits for it, but not every time.
  const auto begin = num_waits();
  int num_made = 0;
  while (num_waits() == begin && num_made < 1000) compiler.regex(fmt::format("b{}", num_made++));
  EXPECT_LT(num_made, 1000);
  const auto grammar = compiler.regex("a*");
  const auto known = num_waits();
  for (int i = 0; i < 200; ++i) EXPECT_EQ(compiler.regex("a*"), grammar);
  EXPECT_LT(num_waits() - known, 20);
}

TEST(Grammars, RefusedOnesAreKnownForAWhile) {
  const GrammarCompiler compiler(demo_tokenizer());
  const auto num_waits = [] {
    rusage usage;
    EXPECT_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
    return usage.ru_nvcsw;
  };
  const auto refusal = [&](const GrammarCompiler& by) {
    return message_of([&] { EXPECT_EQ(by.regex("("), nullptr); });
  };
  EXPECT_EQ(refusal(compiler.known()), "");
  const std::string why = refusal(compiler);
  EXPECT_NE(why, "");
  EXPECT_EQ(refusal(compiler.known()), why);
  const auto known = num_waits();
  for (int i = 0; i < 200; ++i) EXPECT_EQ(refusal(compiler), why);
  EXPECT_LT(num_waits() - known, 20);
  for (int i = 0; i < 15; ++i)
    EXPECT_NE(message_of([&] { compiler.regex(fmt::format("({}", i)); }), "");
  EXPECT_EQ(refusal(compiler.known()), why);
  EXPECT_NE(message_of([&] { compiler.regex("(x"); }), "");
  EXPECT_EQ(refusal(compiler.known()), "");
  // Long ones leave room for few others.
  EXPECT_EQ(refusal(compiler), why);
  const std::string blanks(size_t{900} << 10, ' ');
  for (int i = 0; i < 4; ++i) {
    EXPECT_NE(message_of([&] { compiler.regex(fmt::format("{}({}", blanks, i)); }), "");
  }
  EXPECT_EQ(refusal(compiler.known()), why);
  EXPECT_NE(message_of([&] { compiler.regex(blanks + "("); }), "");
  EXPECT_EQ(refusal(compiler.known()), "");
}

TEST(Grammars, ManyThreadsCompileAndMaskAtOnce) {
  const GrammarCompiler compiler(demo_tokenizer());
  std::vector<std::vector<uint32_t>> masks(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < masks.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const auto own = compiler.regex(fmt::format("[a-z]{{{}}}x{}", t + 1, i));
        own->mask(own->start());
        const auto shared = compiler.json_schema(R"({"type": "object", "maxProperties": 3})");
        const auto state = shared->advance(shared->start(), "{\"a\": [1, {");
        masks[t].resize(shared->num_mask_words());
        shared->fill_mask(state, masks[t]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& mask : masks) EXPECT_EQ(mask, masks[0]);
}

TEST(Grammars, EqualOnesInUseAreOneObject) {
  const auto first = demo_compiler().regex("abc+");
  EXPECT_EQ(demo_compiler().regex("abc+"), first);
  EXPECT_NE(demo_compiler().regex("abc"), first);
  const auto token = demo_tokenizer().encode("a", false).front();
  const GrammarState next = first->advance(first->start(), token);
  EXPECT_EQ(next, first->advance(first->start(), "a"));
  EXPECT_TRUE(first->is_dead(first->advance(next, token)));
  const auto special = *demo_tokenizer().token_to_id("<|endoftext|>");
  EXPECT_TRUE(first->is_dead(first->advance(next, special)));
  std::vector<uint32_t> words(first->num_mask_words() + 2, ~0u);
  first->fill_mask(first->start(), words);
  EXPECT_EQ((words[token / 32] >> token % 32 & 1), 1u);
  EXPECT_EQ((words[special / 32] >> special % 32 & 1), 0u);
  EXPECT_EQ(words.back(), 0u);
}

}  // namespace
}  // namespace nanovllm::grammar
