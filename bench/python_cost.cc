// The C++ side of bench/python_cost.py. For each line "PROMPTS TOKENS" of standard input it
// generates so many tokens for so many prompts, and prints the seconds that passed and those of the
// processor.
#include <fmt/format.h>

#include <chrono>
#include <ctime>
#include <exception>
#include <iostream>

#include "nanovllm/llm.h"

namespace {

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

int run(const char* model, const char* num_threads) {
  nanovllm::LLM llm(model, {.num_threads = std::stoi(num_threads)});
  nanovllm::SamplingParams params;
  params.temperature = 0;
  params.ignore_eos = true;
  for (int num_prompts = 0; std::cin >> num_prompts >> params.max_tokens;) {
    std::vector<nanovllm::Prompt> prompts;
    for (int i = 0; i < num_prompts; ++i) prompts.emplace_back(fmt::format("Day {}", i));
    const auto start = std::chrono::steady_clock::now();
    const double busy_before = processor_seconds();
    const auto outputs = llm.generate(prompts, params);
    const double busy = processor_seconds() - busy_before;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    fmt::print("{} {}\n", passed.count(), busy);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: nanovllm_python_cost MODEL NUM_THREADS\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
