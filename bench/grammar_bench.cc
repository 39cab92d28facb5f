// Speed and reach of grammars: compiles JSON Schemas, takes instances through them token by token,
// and makes the mask before each token.
//
// usage: grammar_bench MODEL_DIR CASES [--refused]
// CASES has one JSON object a line: "name", "schema" as text, and "tests" with "valid" and "texts",
// the instance in one order of members or more, one of which is to be taken. Prints one line of
// JSON; with --refused a line before it for each schema that is not taken, and for each instance
// that is judged wrongly. bench/grammar_compare.py makes the cases and compares with llguidance.
// Times are of the processor, which other programs do not change much.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/token_index.h"
#include "nanovllm/error.h"
#include "nanovllm/tokenizer.h"

namespace nanovllm {
namespace {

double now() {  // microseconds of all threads: grammars are compiled on one of their own
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

nlohmann::json summary(std::vector<double>& times) {
  if (times.empty()) return nullptr;
  std::sort(times.begin(), times.end());
  double sum = 0;
  for (const double time : times) sum += time;
  const auto at = [&](double share) {
    return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
  };
  return {{"count", times.size()},
          {"mean", sum / static_cast<double>(times.size())},
          {"median", at(0.5)},
          {"p99", at(0.99)},
          {"max", times.back()}};
}

struct Totals {
  std::vector<double> first_masks, masks, compiles;  // microseconds
  int schemas = 0, taken = 0, valid = 0, valid_taken = 0, invalid = 0, invalid_taken = 0;
  size_t most_bytes = 0;
  std::string slowest, slowest_first;  // names of schemas: of a mask, and of a first one
};

class Run {
 public:
  Run(const std::string& model, bool tells) : tells_(tells) {
    tokenizer_ = Tokenizer::load(model);
    compiler_ = std::make_unique<GrammarCompiler>(*tokenizer_);
    compiler_->tokens();  // so that the first schema does not wait for it
  }

  void take(const nlohmann::json& line) {
    ++totals_.schemas;
    const std::string schema = line["schema"];
    const double begin = now();
    std::shared_ptr<const Grammar> grammar;
    try {
      grammar = compiler_->json_schema(schema);
    } catch (const Error& error) {
      if (tells_) std::printf("%s: %s\n", line["name"].get<std::string>().c_str(), error.what());
      return;
    }
    totals_.compiles.push_back(now() - begin);
    grammar->mask(grammar->start());
    totals_.first_masks.push_back(now() - begin);
    const double slowest = slowest_;
    ++totals_.taken;
    for (const nlohmann::json& test : line["tests"]) {
      const bool is_valid = test["valid"];
      const nlohmann::json& texts = test["texts"];
      const bool is_taken = std::any_of(texts.begin(), texts.end(),
                                        [&](const auto& text) { return accepts(*grammar, text); });
      ++(is_valid ? totals_.valid : totals_.invalid);
      if (is_taken) ++(is_valid ? totals_.valid_taken : totals_.invalid_taken);
      if (tells_ && is_taken != is_valid) {
        std::printf(
            "%s: %s: %s\n", line["name"].get<std::string>().c_str(),
            is_valid ? "refuses a valid instance" : "takes an invalid instance",
            texts.back().get<std::string>().substr(0, is_valid ? taken_ + 30 : 1000).c_str());
      }
    }
    const std::string name = line["name"];
    if (slowest_ > slowest) totals_.slowest = name;
    if (totals_.first_masks.back() > slowest_first_) totals_.slowest_first = name;
    slowest_first_ = std::max(slowest_first_, totals_.first_masks.back());
    totals_.most_bytes = std::max(totals_.most_bytes, grammar->bytes());
  }

  Totals& totals() { return totals_; }

 private:
  bool accepts(const Grammar& grammar, const std::string& text) {
    GrammarState state = grammar.start();
    taken_ = 0;
    for (const int32_t token : tokenizer_->encode(text, false)) {
      const double begin = now();
      const auto mask = grammar.mask(state);
      totals_.masks.push_back(now() - begin);
      slowest_ = std::max(slowest_, totals_.masks.back());
      const bool is_open = ((*mask)[token / 32] >> token % 32 & 1) != 0;
      const GrammarState next = grammar.advance(state, token);
      if (is_open == grammar.is_dead(next)) {
        std::fprintf(stderr, "mask and automaton differ for token %d\n", token);
        std::exit(1);
      }
      if (!is_open) return false;
      taken_ += compiler_->tokens().bytes(token).size();
      state = next;
    }
    return grammar.is_accepting(state);
  }

  const bool tells_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<GrammarCompiler> compiler_;
  Totals totals_;
  double slowest_ = 0, slowest_first_ = 0;  // microseconds
  size_t taken_ = 0;                        // bytes of the last instance
};

int run(const std::string& model, const char* cases, bool tells) {
  Run all(model, tells);
  std::ifstream file(cases);
  for (std::string line; std::getline(file, line);) all.take(nlohmann::json::parse(line));
  Totals& totals = all.totals();
  const nlohmann::json result = {{"schemas", totals.schemas},
                                 {"taken", totals.taken},
                                 {"valid", totals.valid},
                                 {"valid_taken", totals.valid_taken},
                                 {"invalid", totals.invalid},
                                 {"invalid_taken", totals.invalid_taken},
                                 {"compile_us", summary(totals.compiles)},
                                 {"first_mask_us", summary(totals.first_masks)},
                                 {"mask_us", summary(totals.masks)},
                                 {"slowest_mask", totals.slowest},
                                 {"slowest_first_mask", totals.slowest_first},
                                 {"most_bytes", totals.most_bytes}};
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace nanovllm

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: grammar_bench MODEL_DIR CASES [--refused]\n");
    return 2;
  }
  try {
    return nanovllm::run(argv[1], argv[2], argc > 3 && std::strcmp(argv[3], "--refused") == 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "grammar_bench: %s\n", error.what());
    return 1;
  }
}
