// The whole engine on the demo model with its weights shared by ranks.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "api/outputs_testing.h"
#include "nanovllm/error.h"
#include "nanovllm/llm.h"

namespace nanovllm {
namespace {

using test::expect_equal;

std::vector<RequestOutput> generate(int num_ranks, const std::string& device = "cpu") {
  EngineConfig config;
  config.device = device;
  config.dtype = "float32";
  config.num_threads = 2;
  config.tensor_parallel_size = num_ranks;
  config.num_kvcache_blocks = 128;
  config.kvcache_block_size = 16;
  config.max_model_len = 256;
  config.max_num_batched_tokens = 24;  // prompts in chunks, mixed with decodes
  const std::vector<Prompt> prompts = {
      "Once upon a time there was a little girl who had a red ball and a blue box. She",
      "Once upon a time there was a little girl who had a red ball and a blue box. One day",
      "The dog", "Tom and Lily were friends. They liked to play in the park. Tom had a new car."};
  SamplingParams greedy;
  greedy.temperature = 0;
  greedy.max_tokens = 40;
  greedy.ignore_eos = true;
  SamplingParams random = greedy;
  random.temperature = 0.8;
  random.seed = 5;
  random.repetition_penalty = 1.1;
  LLM llm(NANOVLLM_SOURCE_DIR "/models/demo", config);
  return llm.generate(prompts, {greedy, random, greedy, random});
}

// Sums differ in rounding with the number of ranks; in float32 that is far below the margins by
// which these tokens are chosen. (Log-probabilities, which would differ, are not asked for.)
TEST(LlmParallel, RanksTogetherWriteWhatOneDoes) {
  const std::vector<RequestOutput> expected = generate(1);
  for (const int num_ranks : {2, 4, 8}) {  // 8 ranks are more than the model's 4 KV heads
    expect_equal(generate(num_ranks), expected);
  }
}

#ifdef NANOVLLM_WITH_CUDA
TEST(LlmParallel, GpusTogetherWriteWhatTheCpuDoes) {
  const std::vector<RequestOutput> expected = generate(1);
  for (const int num_ranks : {1, 2, 4}) {
    try {
      expect_equal(generate(num_ranks, "cuda"), expected);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
      GTEST_SKIP() << error.what();  // fewer GPUs than ranks
    }
  }
}
#endif

}  // namespace
}  // namespace nanovllm
