// Speed of the tokenizer: how long loading takes, and how fast text becomes ids and ids text.
//
// usage: tokenizer_bench MODEL_DIR TEXT_FILE...
// A file is one text, or several with zero bytes between them, which are encoded one after the
// other. Prints one line of JSON: the best of several runs each. bench/tokenizer_bench.py compares
// it with the Python package.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "nanovllm/tokenizer.h"

namespace {

// Seconds that the processor needs for the fastest of at least three runs; up to a second
// altogether.
template <typename Run>
double best_time(Run&& run) {
  double best = 1e9, total = 0;
  for (int i = 0; i < 3 || (total < 1 && i < 20); ++i) {
    const std::clock_t start = std::clock();
    run();
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

std::vector<std::string> read_texts(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> texts;
  for (std::string text; std::getline(file, text, '\0');) texts.push_back(text);
  return texts;
}

nlohmann::json measure(const nanovllm::Tokenizer& tokenizer,
                       const std::vector<std::string>& texts) {
  std::vector<std::vector<int32_t>> ids;
  size_t num_bytes = 0, num_tokens = 0;
  for (const std::string& text : texts) {
    ids.push_back(tokenizer.encode(text, false));
    num_bytes += text.size();
    num_tokens += ids.back().size();
  }
  const double encode = best_time([&] {
    for (const std::string& text : texts) tokenizer.encode(text, false);
  });
  const double decode = best_time([&] {
    for (const auto& list : ids) tokenizer.decode(list, false);
  });
  return {{"bytes", num_bytes}, {"tokens", num_tokens}, {"encode", encode}, {"decode", decode}};
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
    for (int i = 2; i < argc; ++i) report[argv[i]] = measure(*tokenizer, read_texts(argv[i]));
    std::printf("%s\n", report.dump().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
