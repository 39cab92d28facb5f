#include "grammar/automaton.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <random>
#include <thread>

#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "grammar/masks.h"
#include "grammar/reference_testing.h"
#include "grammar/regex.h"
#include "grammar/structural_tag.h"
#include "grammar/testing.h"

namespace nanovllm::grammar {
namespace {

// Grammars that use each kind of node, and texts that their random walks begin with.
struct Sample {
  std::string name;
  std::function<NodeId(Syntax&)> build;
};

std::vector<Sample> samples() {
  const auto regex = [](std::string pattern) {
    return Sample{pattern, [=](Syntax& syntax) { return compile_regex(pattern, syntax); }};
  };
  const auto gbnf = [](std::string text) {
    return Sample{text, [=](Syntax& syntax) { return compile_gbnf(text, syntax); }};
  };
  const auto schema = [](std::string text) {
    return Sample{text, [=](Syntax& syntax) {
                    std::vector<std::string> notes;
                    return compile_json_schema(text, {}, syntax, notes);
                  }};
  };
  const auto tag = [](std::string format) {
    return Sample{format, [=](Syntax& syntax) {
                    std::vector<std::string> notes;
                    return compile_structural_tag(
                        R"({"type": "structural_tag", "format": )" + format + "}", {},
                        demo_compiler().tokens(), syntax, notes);
                  }};
  };
  return {
      tag(R"({"type": "json_schema", "style": "qwen_xml", "json_schema": {"properties": {
              "s": {"type": "string", "pattern": "^a*[<b]", "minLength": 2, "maxLength": 9},
              "t": {"type": ["string", "integer"], "minimum": 4}}}})"),
      tag(R"({"type": "any_text", "excludes": ["aba", "ab\u00e9", "\n\n"]})"),
      tag(R"({"type": "star", "content": {"type": "sequence", "elements": [
              {"type": "any_text", "excludes": ["a"]}, {"type": "star", "content":
              {"type": "const_string", "value": "aa"}}]}})"),
      tag(R"({"type": "triggered_tags", "triggers": ["<f", "<|im_start|>"], "tags": [
              {"begin": "<f=", "content": {"type": "any_text"}, "end": ["</f>", "<|im_end|>"]},
              {"begin": "<|im_start|>a", "content": {"type": "json_schema", "json_schema":
               {"type": "object", "properties": {"x": {"type": "string"}}}}, "end": "<|im_end|>"}]})"),
      regex("(a|bb){3,7}c*[é-ü]{0,2}|((ab?){2}){3}"),
      regex("((x{2,3}y?){2,4}z|x*)*"),
      regex(".{3,20}end"),
      regex("((([ab][cd])?e*)*f*)*|(([ab]{2})*(c[de]?)?)*g"),
      gbnf("root ::= \"{\" (root (\",\" root)*)? \"}\" | [a-z]{1,3}"),
      schema("true"),
      schema(R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 5},
                 "nav": {"type": "integer", "minimum": 3, "maximum": 1200}}, "required": ["nav"]})"),
      schema(R"({"type": "object", "properties": {"a": {"enum": ["x", "xy", 3]}},
                 "patternProperties": {"^x-": {"type": "null"}}, "additionalProperties": {"type": "boolean"}})"),
      schema(R"({"type": "string", "pattern": "x.*y", "minLength": 2, "maxLength": 14})"),
      schema(R"({"type": "string", "pattern": "[a-q]$", "maxLength": 300})"),
      schema(
          R"({"type": "array", "items": {"type": "string", "pattern": "^a+b", "maxLength": 6}, "maxItems": 3})"),
  };
}

// A text that is the beginning of an accepted one, and perhaps a byte that is not.
std::string random_walk(Automaton& automaton, std::mt19937& random, size_t length) {
  std::string text;
  StateId state = kStart;
  while (text.size() < length) {
    std::vector<uint8_t> open;
    for (int byte = 0; byte < 256; ++byte) {
      if (automaton.next(state, static_cast<uint8_t>(byte)) > kOutgrown) {
        open.push_back(static_cast<uint8_t>(byte));
      }
    }
    if (open.empty()) break;
    text.push_back(static_cast<char>(open[random() % open.size()]));
    state = automaton.next(state, static_cast<uint8_t>(text.back()));
  }
  if (random() % 4 == 0) text.push_back(static_cast<char>("\"}x,a"[random() % 5]));
  return text;
}

TEST(Automaton, AgreesWithTheSlowRecogniserOnRandomTexts) {
  std::mt19937 random(7);
  for (const Sample& sample : samples()) {
    Syntax syntax;
    const NodeId start = syntax.finish(sample.build(syntax));
    ASSERT_NE(start, syntax.never());
    Automaton automaton(syntax, start, 1 << 26);
    Reference reference(syntax, start);
    for (int round = 0; round < 100; ++round) {
      const std::string text = random_walk(automaton, random, random() % 40);
      const Reference::Verdict slow = reference.judge(text);
      const StateId state = automaton.advance(kStart, text);
      EXPECT_EQ(automaton.is_accepting(state), slow.accepts) << sample.name << "\n" << text;
      EXPECT_EQ(state > kOutgrown, slow.accepts || slow.goes_on) << sample.name << "\n" << text;
    }
  }
}

TEST(Automaton, MasksAreWhatTheSlowRecogniserSaysOfEachToken) {
  const TokenIndex index(demo_tokenizer());
  std::mt19937 random(11);
  for (const Sample& sample : samples()) {
    Syntax syntax;
    const NodeId start = syntax.finish(sample.build(syntax));
    Automaton automaton(syntax, start, 1 << 26);
    Reference reference(syntax, start);
    for (int round = 0; round < 4; ++round) {
      std::string text = random_walk(automaton, random, round * 7);
      const StateId state = automaton.advance(kStart, text);
      if (state <= kOutgrown) continue;
      MaskWords words;
      make_mask(automaton, automaton.nearby(state, index.longest()), index, words);
      for (int32_t id = 0; id < index.vocab_size(); ++id) {
        const std::string_view bytes = index.bytes(id);
        bool is_open = false;
        if (!bytes.empty()) {
          const auto verdict = reference.judge(text + std::string(bytes));
          is_open = verdict.accepts || verdict.goes_on;
        }
        ASSERT_EQ((words[id / 32] >> id % 32 & 1) != 0, is_open) << sample.name << "\n"
                                                                 << text << "\ntoken " << bytes;
      }
    }
  }
}

TEST(Automaton, ThreadsFindTheSameStates) {
  const auto grammar = demo_compiler().json_schema("true");
  const std::string text = R"({"a": [1, 2, {"b": null}], "c": "text of a string", "d": [[[]]]})";
  std::vector<std::vector<GrammarState>> states(4);
  std::vector<std::thread> threads;
  for (auto& its : states) {
    threads.emplace_back([&] {
      GrammarState state = grammar->start();
      for (const char byte : text) {
        state = grammar->advance(state, std::string_view(&byte, 1));
        its.push_back(state);
        grammar->mask(state);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& its : states) EXPECT_EQ(its, states[0]);
  EXPECT_TRUE(grammar->is_accepting(states[0].back()));
}

TEST(Automaton, EndsWhereItsMemoryEnds) {
  Syntax syntax;
  const NodeId start = syntax.finish(compile_gbnf("root ::= \"(\" root? \")\"", syntax));
  Automaton automaton(syntax, start, 1 << 18);
  const std::string text = std::string(100, '(') + std::string(100, ')');
  const StateId end = automaton.advance(kStart, text);
  EXPECT_GT(end, kOutgrown);
  EXPECT_FALSE(automaton.is_outgrown());
  EXPECT_EQ(automaton.advance(kStart, std::string(100000, '(')), kOutgrown);
  EXPECT_TRUE(automaton.is_outgrown());
  // What was known before is as it was.
  EXPECT_EQ(automaton.advance(kStart, text), end);
  EXPECT_TRUE(automaton.is_accepting(end));
}

TEST(Automaton, TakesNoMoreMemoryThanItSays) {
  const auto used = [] {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  Syntax syntax;
  const NodeId start = syntax.finish(compile_gbnf("root ::= [(a] root? [)b]", syntax));
  const size_t before = used();
  Automaton automaton(syntax, start, 1 << 24);
  size_t steps = 0;
  for (StateId state = kStart; state > kOutgrown; ++steps) state = automaton.next(state, '(');
  EXPECT_GT(steps, 19000u);
  constexpr size_t kOneTransition = 1024;
  EXPECT_LE(automaton.bytes(), (1u << 24) + kOneTransition);
  EXPECT_LE(used() - before, automaton.bytes() + kOneTransition);
}

TEST(Automaton, MasksAreWholeOrEmpty) {
  const TokenIndex index(demo_tokenizer());
  Syntax syntax;
  const NodeId start = syntax.finish(compile_regex("([a-z]{1,9} ){1,9}", syntax));
  MaskWords whole, words;
  Automaton large(syntax, start, 1 << 26);
  EXPECT_TRUE(make_mask(large, kStart, index, whole));
  EXPECT_FALSE(large.is_outgrown());
  Automaton small(syntax, start, 1 << 12);
  EXPECT_FALSE(make_mask(small, kStart, index, words));
  EXPECT_TRUE(small.is_outgrown());
  EXPECT_EQ(words, MaskWords(index.num_words()));
  EXPECT_NE(words, whole);
}

TEST(Automaton, AMaskTakesNoEndlessWork) {
  const TokenIndex index(demo_tokenizer());
  Syntax syntax;
  const NodeId start = syntax.finish(compile_regex("([a-z]{1,9} ){1,9}", syntax));
  MaskWords words;
  size_t enough = 1;
  for (bool is_whole = false; !is_whole; enough *= 2) {
    Automaton automaton(syntax, start, 1 << 26);
    is_whole = make_mask(automaton, kStart, index, words, enough);
    EXPECT_EQ(automaton.is_outgrown(), !is_whole);
    EXPECT_EQ(words == MaskWords(index.num_words()), !is_whole);
  }
  EXPECT_GT(enough, 16u);
  EXPECT_LT(enough, kMaxMaskWork);
}

// A guess that takes too much is no reason to end a text, and is no help to it.
TEST(Automaton, GuessesOutgrowNothing) {
  const TokenIndex index(demo_tokenizer());
  Syntax syntax;
  const NodeId start = syntax.finish(compile_regex("([a-z]{1,9} ){1,9}", syntax));
  MaskWords whole, words;
  Automaton fresh(syntax, start, 1 << 26), guessed(syntax, start, 1 << 26);
  ASSERT_TRUE(make_mask(fresh, kStart, index, whole));
  size_t num_refused = 0;
  for (size_t work = 1; !make_mask(guessed, kStart, index, words, work, true); work *= 2) {
    EXPECT_EQ(words, MaskWords(index.num_words()));
    Automaton small(syntax, start, 1 << 26);
    EXPECT_FALSE(make_mask(small, kStart, index, words, work, true));
    EXPECT_FALSE(make_mask(small, kStart, index, words, work, true));
    EXPECT_FALSE(small.is_outgrown());
    EXPECT_FALSE(make_mask(small, kStart, index, words, work));
    EXPECT_TRUE(small.is_outgrown());
    ++num_refused;
  }
  EXPECT_GT(num_refused, 4u);
  EXPECT_EQ(words, whole);
  EXPECT_FALSE(guessed.is_outgrown());
}

TEST(Automaton, GuessesTakeNoMemoryFromTexts) {
  Syntax syntax;
  const NodeId start = syntax.finish(compile_gbnf("root ::= ([(a] root? [)b] | \"x\")+", syntax));
  constexpr size_t kMaxBytes = 1 << 18;
  const auto length = [](Automaton& automaton, char byte, bool is_guess) {
    size_t steps = 0;
    for (StateId state = kStart; state != kOutgrown; ++steps) {
      state = automaton.advance(state, {&byte, 1}, is_guess);
    }
    return steps;
  };
  Automaton fresh(syntax, start, kMaxBytes), guessed(syntax, start, kMaxBytes);
  const size_t expected = length(fresh, '(', false);
  EXPECT_GT(length(guessed, 'a', true), 20u);
  EXPECT_FALSE(guessed.is_outgrown());
  EXPECT_LT(guessed.bytes(), kMaxBytes / 2);
  EXPECT_GE(length(guessed, '(', false), expected);
  EXPECT_TRUE(guessed.is_outgrown());
  EXPECT_LT(guessed.bytes(), kMaxBytes + kMaxBytes / 2);
}

// One state has a bound as well.
TEST(Automaton, AStateTakesNoEndlessWork) {
  const auto grammar = demo_compiler().regex("(.{1,300}b?){1,300}");
  GrammarState state = grammar->start();
  for (int i = 0; i < 400 && !grammar->is_dead(state); ++i) state = grammar->advance(state, "a");
  EXPECT_TRUE(grammar->is_outgrown(state));
}

// Behind each of 26 letters stands a chain of rules, which is looked through again for each.
TEST(Automaton, LookingBehindStacksIsWork) {
  const TokenIndex index(demo_tokenizer());
  const auto with_chain = [&](int length, bool same_letter) {
    std::string text = "root ::= ";
    for (char letter = 'a'; letter <= 'z'; ++letter) {
      const std::string first(1, same_letter ? 'a' : letter);
      text += fmt::format(R"({}"{}" (r0 | "{}"))", letter > 'a' ? " | " : "", first, letter);
    }
    for (int i = 0; i < length; ++i) text += fmt::format("\nr{} ::= r{}", i, i + 1);
    Syntax syntax;
    const NodeId start =
        syntax.finish(compile_gbnf(text + fmt::format("\nr{} ::= \"0\"\n", length), syntax));
    Automaton automaton(syntax, start, 1 << 26);
    if (same_letter) return automaton.advance(kStart, "a") != kOutgrown;
    MaskWords words;
    const bool is_whole = make_mask(automaton, kStart, index, words);
    EXPECT_EQ(automaton.is_outgrown(), !is_whole);
    return is_whole;
  };
  EXPECT_TRUE(with_chain(5000, false));
  EXPECT_FALSE(with_chain(20'000, false));
  // One transition alone.
  EXPECT_TRUE(with_chain(5000, true));
  EXPECT_FALSE(with_chain(20'000, true));
}

// Many alternatives that differ in the next byte.
TEST(Automaton, ManyLiteralsAreToldApartByTheirBytes) {
  Syntax syntax;
  std::vector<NodeId> ways;
  for (int i = 0; i < 3000; ++i) {
    ways.push_back(syntax.sequence(
        {syntax.literal(std::to_string(i * 7)), syntax.characters({{'a', 'f'}}, Spelling::kText)}));
  }
  ways.push_back(syntax.characters({{'1', '3'}, {'x', 'z'}}, Spelling::kText));
  const NodeId start = syntax.finish(syntax.choice(ways));
  Automaton automaton(syntax, start, 1 << 26);
  Reference reference(syntax, start);
  for (const char* text :
       {"7", "14b", "15a", "2", "x", "20993f", "20993", "209", "20999", "4", "0a", "0"}) {
    const StateId state = automaton.advance(kStart, text);
    const Reference::Verdict slow = reference.judge(text);
    EXPECT_EQ(automaton.is_accepting(state), slow.accepts) << text;
    EXPECT_EQ(state > kOutgrown, slow.accepts || slow.goes_on) << text;
  }
}

TEST(Automaton, CountsThatAreFarAwayShareAMask) {
  for (const char* schema :
       {R"({"type": "string", "maxLength": 100000})",
        R"({"type": "string", "pattern": "^[a-z]*$", "minLength": 1, "maxLength": 5000})"}) {
    const auto grammar = demo_compiler().json_schema(schema);
    const GrammarState near = grammar->advance(grammar->start(), "\"ab");
    const GrammarState far = grammar->advance(near, "cdefgh");
    EXPECT_NE(near, far);
    EXPECT_EQ(grammar->mask(near), grammar->mask(far)) << schema;
  }
}

}  // namespace
}  // namespace nanovllm::grammar
