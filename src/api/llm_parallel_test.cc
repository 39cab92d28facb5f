// The whole engine on the demo model with its weights shared by ranks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "api/outputs_testing.h"
#include "base/signals.h"
#include "base/testing.h"
#include "nanovllm/error.h"
#include "nanovllm/llm.h"
#ifdef NANOVLLM_WITH_CUDA
#  include "backend/cuda/backend/cuda_backend.h"
#endif

namespace nanovllm {
namespace {

using test::expect_equal;

std::vector<RequestOutput> generate(int num_ranks, const std::string& device = "cpu",
                                    int first_gpu = 0, const std::string& quantization = "") {
  EngineConfig config;
  config.quantization = quantization;
  config.device = device;
  config.first_gpu = first_gpu;
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
  greedy.max_tokens = test::full_or_reduced(40, 12);
  greedy.ignore_eos = true;
  SamplingParams random = greedy;
  random.temperature = 0.8;
  random.seed = 5;
  random.repetition_penalty = 1.1;
  LLM llm(test::source_path("models/demo"), config);
  std::vector<RequestOutput> outputs;
  // On another thread than it was loaded on, as a worker computes.
  std::thread([&] {
    outputs = llm.generate(prompts, std::vector<SamplingParams>{greedy, random, greedy, random});
  }).join();
  return outputs;
}

// Sums differ in rounding with the number of ranks; in float32 that is far below the margins by
// which these tokens are chosen. (Log-probabilities, which would differ, are not asked for.)
TEST(LlmParallel, RanksTogetherWriteWhatOneDoes) {
  const std::vector<RequestOutput> expected = generate(1);
  for (const int num_ranks : {2, 4, 8}) {  // 8 ranks are more than the model's 4 KV heads
    expect_equal(generate(num_ranks), expected);
  }
}

TEST(LlmParallel, RanksShareWeightsInCodes) {
  for (const char* quantization : {"int4", "int8", "fp8"}) {
    SCOPED_TRACE(quantization);
    const std::vector<RequestOutput> expected = generate(1, "cpu", 0, quantization);
    for (const int num_ranks : {2, 4}) {
      expect_equal(generate(num_ranks, "cpu", 0, quantization), expected);
    }
  }
}

// Two at once: in chunks beside decodes, and the last two where a state of the first was kept.
std::vector<RequestOutput> generate_with_states(const std::string& file, int num_ranks) {
  EngineConfig config;
  config.device = "cpu";
  config.dtype = "float32";
  config.num_threads = 2;
  config.tensor_parallel_size = num_ranks;
  config.num_kvcache_blocks = 64;
  config.kvcache_block_size = 16;
  config.max_model_len = 512;
  config.max_num_batched_tokens = 48;
  config.max_num_seqs = 2;
  config.state_cache_memory = 4 << 20;
  std::vector<int32_t> first(150);
  for (size_t i = 0; i < first.size(); ++i) first[i] = static_cast<int32_t>(3 + i * i % 311);
  std::vector<int32_t> like_it = first;
  std::ranges::fill(std::span(like_it).subspan(140), 7);
  const std::vector<int32_t> another(first.rbegin(), first.rbegin() + 70);
  SamplingParams greedy;
  greedy.temperature = 0;
  greedy.max_tokens = test::full_or_reduced(80, 12);
  greedy.ignore_eos = true;
  SamplingParams random = greedy;
  random.temperature = 0.8;
  random.seed = 6;
  LLM llm(test::source_path("tests/data/" + file), config);
  return llm.generate({first, another, like_it, first},
                      std::vector<SamplingParams>{greedy, random, greedy, random});
}

// Other numbers of key heads than of value heads, which the first file has in another order than a
// folder.
TEST(LlmParallel, RanksShareStatesOfGgufFiles) {
  for (const char* file : {"gguf_qwen35.gguf", "gguf_qwen3next.gguf"}) {
    SCOPED_TRACE(file);
    const std::vector<RequestOutput> expected = generate_with_states(file, 1);
    const std::vector<RequestOutput> shared = generate_with_states(file, 2);
    expect_equal(shared, expected);
    for (const int like_first : {2, 3}) {
      EXPECT_EQ(expected[like_first].num_cached_tokens, 128);
      EXPECT_EQ(shared[like_first].num_cached_tokens, 128);
    }
  }
}

// Signals that the threads of this process block, the calling one's left out; a mask each.
std::vector<uint64_t> masks_of_other_threads() {
  std::vector<uint64_t> masks;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    if (thread.path().filename() == std::to_string(gettid())) continue;
    std::ifstream status(thread.path() / "status");
    for (std::string word; status >> word;) {
      if (word == "SigBlk:" && status >> word) masks.push_back(std::stoull(word, nullptr, 16));
    }
  }
  return masks;
}

// What a line editor does at a Ctrl-C must not happen in two threads at once.
void expect_threads_leave_signals(const std::string& device, int num_ranks, size_t min_threads) {
  EngineConfig config;
  config.device = device;
  config.num_threads = 4;
  config.tensor_parallel_size = num_ranks;
  config.num_kvcache_blocks = 16;
  LLM llm(test::source_path("models/demo"), config);
  SamplingParams params;
  params.max_tokens = 2;
  llm.generate({"Once"}, params);
  const std::vector<uint64_t> masks = masks_of_other_threads();
  EXPECT_GE(masks.size(), min_threads);
  for (const uint64_t mask : masks) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT, SIGWINCH, SIGCHLD}) {
      EXPECT_TRUE(mask & uint64_t{1} << (signal - 1)) << signal;
    }
  }
  sigset_t own;
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, nullptr, &own), 0);
  EXPECT_EQ(sigismember(&own, SIGINT), 0);
}

TEST(LlmParallel, ThreadsOfTheEngineLeaveSignalsToTheProgram) {
  expect_threads_leave_signals("cpu", 1, 3);
  expect_threads_leave_signals("cpu", 2, 4);
}

#ifdef NANOVLLM_WITH_CUDA
int count_gpus() {
  const SignalsBlocked in_driver;  // as the engine has it: counting starts the driver's threads
  return CudaBackend::device_count();
}

TEST(LlmParallel, GpusTogetherWriteWhatTheCpuDoes) {
  const std::vector<RequestOutput> expected = generate(1);
  if (count_gpus() < 2) GTEST_SKIP() << "this machine has fewer than 2 GPUs";
  for (const int num_ranks : {1, 2, 4}) {
    if (num_ranks <= count_gpus()) {
      expect_equal(generate(num_ranks, "cuda"), expected);
    }
  }
}

TEST(LlmParallel, ThreadsOfCudaLeaveSignalsToTheProgram) {
  if (count_gpus() == 0) GTEST_SKIP() << "no CUDA device on this machine";
  expect_threads_leave_signals("cuda", 1, 1);
}

TEST(LlmParallel, AnyGpuMayBeTheFirst) {
  const std::vector<RequestOutput> expected = generate(1);
  const int num_gpus = count_gpus();
  if (num_gpus < 2) GTEST_SKIP() << "this machine has fewer than 2 GPUs";
  expect_equal(generate(1, "cuda", num_gpus - 1), expected);
  EXPECT_THROW(generate(1, "cuda", num_gpus), Error);
  EXPECT_THROW(generate(2, "cuda", num_gpus - 1), Error);
  if (num_gpus < 3) GTEST_SKIP() << "this machine has fewer than 3 GPUs";
  expect_equal(generate(2, "cuda", 1), expected);
}
#endif

}  // namespace
}  // namespace nanovllm
