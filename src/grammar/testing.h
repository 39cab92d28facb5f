// What the tests of grammars share.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/testing.h"
#include "grammar/grammar.h"
#include "nanovllm/error.h"
#include "nanovllm/tokenizer.h"

namespace nanovllm::grammar {

inline const Tokenizer& demo_tokenizer() {
  static const std::unique_ptr<Tokenizer> kTokenizer =
      Tokenizer::load(test::source_path("models/demo"));
  return *kTokenizer;
}

inline const GrammarCompiler& demo_compiler() {
  static const GrammarCompiler kCompiler(demo_tokenizer());
  return kCompiler;
}

inline bool accepts(const Grammar& grammar, std::string_view text) {
  return grammar.is_accepting(grammar.advance(grammar.start(), text));
}

struct Case {
  std::string grammar;
  std::vector<std::string> accepted, refused;
};

template <typename Compile>
void check_cases(const std::vector<Case>& cases, Compile&& compile) {
  for (const Case& one : cases) {
    std::shared_ptr<const Grammar> grammar;
    ASSERT_NO_THROW(grammar = compile(one.grammar)) << one.grammar;
    for (const std::string& text : one.accepted) {
      EXPECT_TRUE(accepts(*grammar, text)) << one.grammar << " refuses " << text;
    }
    for (const std::string& text : one.refused) {
      EXPECT_FALSE(accepts(*grammar, text)) << one.grammar << " accepts " << text;
    }
  }
}

// What the call throws, "" when it throws nothing.
template <typename Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace nanovllm::grammar
