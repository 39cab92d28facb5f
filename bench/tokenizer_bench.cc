// Speed of the tokenizer: how long loading takes, and how fast text becomes ids and ids text.
//
// usage: tokenizer_bench MODEL_DIR TEXT_FILE...
// Prints one line of JSON: the best of several runs each. bench/tokenizer_bench.py compares it with
// the Python package.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "text/tokenizer.h"

namespace {

// Seconds of the fastest of at least three runs; up to a second altogether.
template <typename Run>
double best_time(Run&& run) {
  using Clock = std::chrono::steady_clock;
  double best = 1e9, total = 0;
  for (int i = 0; i < 3 || (total < 1 && i < 20); ++i) {
    const auto start = Clock::now();
    run();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: tokenizer_bench MODEL_DIR TEXT_FILE...\n");
    return 2;
  }
  try {
    nlohmann::json report;
    report["load"] = best_time([&] { nanovllm::Tokenizer::load(argv[1]); });
    const auto tokenizer = nanovllm::Tokenizer::load(argv[1]);
    for (int i = 2; i < argc; ++i) {
      std::ifstream file(argv[i], std::ios::binary);
      std::ostringstream buffer;
      buffer << file.rdbuf();
      const std::string text = buffer.str();
      const auto ids = tokenizer->encode(text, false);
      report[argv[i]] = {{"bytes", text.size()},
                         {"tokens", ids.size()},
                         {"encode", best_time([&] { tokenizer->encode(text, false); })},
                         {"decode", best_time([&] { tokenizer->decode(ids, false); })}};
    }
    std::printf("%s\n", report.dump().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
