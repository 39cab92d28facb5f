// What the tests of grammars share.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
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

// The demo's with further added tokens.
inline std::unique_ptr<Tokenizer> tokenizer_with_marks(const std::vector<std::string>& marks) {
  std::ifstream file(test::source_path("models/demo/tokenizer.json"));
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(file);
  for (const std::string& mark : marks) {
    nlohmann::ordered_json token = json["added_tokens"].back();
    token["id"] = token["id"].get<int>() + 1;
    token["content"] = mark;
    token["special"] = false;
    json["added_tokens"].push_back(std::move(token));
  }
  return Tokenizer::from_json(json.dump(), "demo");
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
