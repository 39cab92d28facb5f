// Compiles grammars for a program on the other end of a pipe.
//
// usage: grammar_driver MODEL_DIR
// A request is a line of JSON: "kind" (json, regex or gbnf), "grammar", "texts" to judge, and how
// many "walks" to take under the masks, by "seed". The answer is a line: "accepted" of each text
// and the texts of "walks" that came to an end, or "error".
#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/token_index.h"
#include "nanovllm/tokenizer.h"

namespace nanovllm {
namespace {

constexpr size_t kRandomTokens = 60;  // before a walk looks for its end
constexpr size_t kMostTokens = 1000;
constexpr int kTries = 3;  // for each walk

// Tokens at random, then those that end something. Empty: it found no end.
std::string walk(const Grammar& grammar, const GrammarCompiler& compiler, std::mt19937& random) {
  const grammar::TokenIndex& tokens = compiler.tokens();
  std::string text;
  GrammarState state = grammar.start();
  for (size_t step = 0; step < kMostTokens; ++step) {
    const bool ends = step >= kRandomTokens || random() % 8 == 0;
    if (grammar.is_accepting(state) && ends) return text;
    const auto mask = grammar.mask(state);
    std::vector<int32_t> open;
    for (int32_t id = 0; id < tokens.vocab_size(); ++id) {
      if (((*mask)[id / 32] >> id % 32 & 1) != 0) open.push_back(id);
    }
    if (open.empty()) return grammar.is_accepting(state) ? text : "dead end behind: " + text;
    int32_t chosen = open[random() % open.size()];
    for (const std::string_view end : {"}", "]", "\"", ":", ",", "1", "0", "t", "f", "n"}) {
      const auto is_end = [&](int32_t id) { return tokens.bytes(id) == end; };
      const auto found = std::find_if(open.begin(), open.end(), is_end);
      if (!ends || found == open.end()) continue;
      if (random() % 4 != 0) chosen = *found;  // else it may go on in circles
      break;
    }
    text += tokens.bytes(chosen);
    state = grammar.advance(state, chosen);
  }
  return "";
}

nlohmann::json answer(const GrammarCompiler& compiler, const nlohmann::json& request) {
  const std::string kind = request["kind"], text = request["grammar"];
  std::shared_ptr<const Grammar> grammar;
  try {
    grammar = kind == "json"    ? compiler.json_schema(text)
              : kind == "regex" ? compiler.regex(text)
                                : compiler.gbnf(text);
  } catch (const std::exception& error) {
    return {{"error", error.what()}};
  }
  nlohmann::json accepted = nlohmann::json::array(), walks = nlohmann::json::array();
  for (const std::string& one : request.value("texts", std::vector<std::string>())) {
    accepted.push_back(grammar->is_accepting(grammar->advance(grammar->start(), one)));
  }
  std::mt19937 random(request.value("seed", 1u));
  const int wanted = request.value("walks", 0);
  for (int i = 0; i < kTries * wanted && walks.size() < static_cast<size_t>(wanted); ++i) {
    std::string its = walk(*grammar, compiler, random);
    if (!its.empty()) walks.push_back(std::move(its));
  }
  return {{"accepted", accepted}, {"walks", walks}};
}

}  // namespace
}  // namespace nanovllm

int main(int argc, char** argv) {
  try {
    const auto tokenizer = nanovllm::Tokenizer::load(argc > 1 ? argv[1] : ".");
    const nanovllm::GrammarCompiler compiler(*tokenizer);
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << nanovllm::answer(compiler, nlohmann::json::parse(line))
                       .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                << std::endl;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "grammar_driver: %s\n", error.what());
    return 1;
  }
  return 0;
}
