// The C++ side of bench/python_cost.py: for each line "NUM_PROMPTS INPUT_LEN OUTPUT_LEN" on stdin
// the seconds that LLM::generate takes. Usage: nanovllm_python_cost MODEL NUM_THREADS MAX_NUM_SEQS
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "nanovllm/error.h"
#include "nanovllm/llm.h"

using namespace nanovllm;  // NOLINT(google-build-using-namespace)

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    EngineConfig config;
    config.num_threads = std::atoi(argv[2]);
    config.max_num_seqs = std::atoi(argv[3]);
    config.kvcache_block_size = 16;
    config.enable_prefix_caching = false;
    LLM llm(argv[1], config);
    int num_prompts = 0, input_len = 0, output_len = 0;
    while (std::scanf("%d %d %d", &num_prompts, &input_len, &output_len) == 3) {
      std::vector<Prompt> prompts;
      for (int i = 0; i < num_prompts; ++i) {
        std::vector<int32_t> ids(static_cast<size_t>(input_len));
        for (int j = 0; j < input_len; ++j) ids[static_cast<size_t>(j)] = 100 + (7 * i + j) % 3900;
        prompts.emplace_back(std::move(ids));
      }
      const SamplingParams params{.temperature = 0, .max_tokens = output_len, .ignore_eos = true};
      const auto start = std::chrono::steady_clock::now();
      const std::vector<RequestOutput> outputs = llm.generate(prompts, params);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      std::printf("%.6f\n", seconds.count());
      std::fflush(stdout);
    }
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "nanovllm_python_cost: %s\n", error.what());
    return 1;
  }
}
