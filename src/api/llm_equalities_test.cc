// Every family of models, in both dtypes, through the whole engine: what a request gets depends on
// its own prompt, parameters and seed alone. Over the tiny checkpoints of tests/goldens,
// and over weights in codes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "api/outputs_testing.h"
#include "base/testing.h"
#include "io/k_quants_testing.h"
#include "nanovllm/llm.h"
#ifdef NANOVLLM_WITH_CUDA
#  include "backend/cuda/backend/cuda_backend.h"
#endif

namespace nanovllm {
namespace {

using test::expect_equal;

// A file that no folder of tests has.
constexpr const char* kKQuants = "k_quants";
// With recurrent layers, whose states are kept at multiples of 64 tokens.
constexpr const char* kHybrids[] = {"qwen3_5", "qwen3_5_moe", "qwen3_next", "olmo_hybrid"};

struct Case {
  std::string checkpoint;
  std::string dtype;
  std::string device = "cpu";
  std::string quantization = {};

  bool is_hybrid() const { return std::ranges::find(kHybrids, checkpoint) != std::end(kHybrids); }
  std::string path() const {
    if (checkpoint == kKQuants) {
      static const testing::TempDir dir;
      static const std::string file = dir.write("k_quants.gguf", testing::k_quants_gguf());
      return file;
    }
    const bool is_gguf = checkpoint.starts_with("gguf_");
    return test::source_path(is_gguf ? "tests/data/" + checkpoint + ".gguf"
                                     : "tests/goldens/" + checkpoint);
  }
};

// No checkpoint has fewer tokens.
constexpr unsigned kNumTokens = 300;

EngineConfig base_config() {
  EngineConfig config;
  config.num_threads = 2;
  config.kvcache_block_size = 16;
  config.num_kvcache_blocks = 128;
  config.max_model_len = 160;
  config.max_num_batched_tokens = 512;
  config.state_cache_memory = 16 << 20;
  return config;
}

std::vector<int32_t> random_ids(int count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng() % kNumTokens);
  return ids;
}

// A token, a few, some blocks, the same with another end, and a long one.
std::vector<Prompt> prompts() {
  std::vector<int32_t> fork = random_ids(45, 2);
  fork.back() = (fork.back() + 1) % static_cast<int32_t>(kNumTokens);
  return {random_ids(1, 1), random_ids(17, 5), random_ids(45, 2), fork, random_ids(90, 3)};
}

std::vector<SamplingParams> params() {
  std::vector<SamplingParams> all(5);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].temperature = i % 2 == 0 ? 0 : 1.5;
    all[i].seed = 100 + i;
    all[i].max_tokens = 20;
    all[i].ignore_eos = true;
    all[i].logprobs = 3;
  }
  all[1].top_p = 0.9;
  all[1].n = 2;
  all[3].top_k = 50;
  all[3].min_p = 0.01;
  all[4].repetition_penalty = 1.2;
  all[4].frequency_penalty = 0.1;
  return all;
}

class LlmEqualities : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
#ifdef NANOVLLM_WITH_CUDA
    if (GetParam().device == "cuda" && CudaBackend::device_count() == 0) {
      GTEST_SKIP() << "no CUDA device on this machine";
    }
#endif
  }
  static LLM load(EngineConfig config) {
    config.dtype = GetParam().dtype;
    config.device = GetParam().device;
    config.quantization = GetParam().quantization;
    config.deterministic = config.device == "cuda";
    return LLM(GetParam().path(), config);
  }
  static std::vector<RequestOutput> generate(const EngineConfig& config) {
    return load(config).generate(prompts(), params());
  }
};

// Models with recurrent layers.
class HybridEqualities : public LlmEqualities {};

TEST_P(LlmEqualities, BatchMates) {
  const auto together = generate(base_config());
  EngineConfig config = base_config();
  config.max_num_seqs = 1;
  expect_equal(generate(config), together);
  LLM llm = load(base_config());
  for (size_t i = 0; i < prompts().size(); ++i) {
    expect_equal(llm.generate({prompts()[i]}, params()[i]), {together[i]});
  }
}

TEST_P(LlmEqualities, PrefixCaching) {
  LLM llm = load(base_config());
  const auto first = llm.generate(prompts(), params());
  const auto again = llm.generate(prompts(), params());
  EXPECT_EQ(again[4].num_cached_tokens, GetParam().is_hybrid() ? 64 : 80);
  expect_equal(again, first);
  EngineConfig config = base_config();
  config.enable_prefix_caching = false;
  const auto uncached = generate(config);
  EXPECT_EQ(uncached[4].num_cached_tokens, 0);
  expect_equal(uncached, first);
}

TEST_P(LlmEqualities, ChunkSizes) {
  const auto whole = generate(base_config());
  for (const int chunk : {1, 3, 16, 50, 91}) {
    SCOPED_TRACE(::testing::Message() << "max_num_batched_tokens " << chunk);
    EngineConfig config = base_config();
    config.max_num_batched_tokens = chunk;
    expect_equal(generate(config), whole);
  }
}

TEST_P(LlmEqualities, Preemption) {
  const auto ample = generate(base_config());
  // Those of the longest request and three more.
  const auto num_blocks =
      static_cast<int>(load(base_config()).engine().info().blocks_for(90 + 20 - 1)) + 3;
  for (const bool caching : {true, false}) {
    EngineConfig config = base_config();
    config.num_kvcache_blocks = num_blocks;
    config.enable_prefix_caching = caching;
    const auto tight = generate(config);
    int num_preemptions = 0;
    for (const RequestOutput& output : tight) num_preemptions += output.num_preemptions;
    EXPECT_GT(num_preemptions, 0);
    expect_equal(tight, ample);
  }
}

// In chunks, beside each other; up to the first token that another might have been.
TEST_P(HybridEqualities, GreedyTokensInFloat32AreThoseOfTransformers) {
  if (GetParam().dtype != "float32") GTEST_SKIP() << "they are float32's";
  const auto golden = nlohmann::json::parse(std::ifstream(GetParam().path() + "/golden.json"));
  std::vector<Prompt> texts;
  SamplingParams greedy;
  greedy.temperature = 0;
  greedy.ignore_eos = true;
  for (const auto& one : golden.at("cases")) {
    texts.emplace_back(one.at("ids").get<std::vector<int32_t>>());
    greedy.max_tokens = static_cast<int>(one.at("greedy").size());
  }
  EngineConfig config = base_config();
  config.max_model_len = 512;
  config.max_num_batched_tokens = 100;
  const auto outputs = load(config).generate(texts, greedy);
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto& one = golden.at("cases").at(i);
    const std::vector<float> margins = one.at("margins");
    const auto decisive = std::ranges::find_if(margins, [](float m) { return m <= 0.01f; });
    const std::vector<int32_t> expected = one.at("greedy");
    const auto& tokens = outputs.at(i).outputs.at(0).token_ids;
    ASSERT_EQ(tokens.size(), expected.size());
    const auto count = decisive - margins.begin();
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.begin() + count, expected.begin())) << i;
  }
}

TEST_P(HybridEqualities, FewStates) {
  const auto together = generate(base_config());
  EngineConfig config = base_config();
  config.state_cache_memory = 1 << 19;
  expect_equal(generate(config), together);
}

TEST_P(LlmEqualities, ThreadsOrGraphs) {
  const auto usual = generate(base_config());
  const bool has_graphs = GetParam().device == "cuda";
  for (const int num_threads : {1, 3}) {
    EngineConfig config = base_config();
    if (has_graphs) config.enforce_eager = true;
    config.num_threads = num_threads;
    expect_equal(generate(config), usual);
    if (has_graphs) break;
  }
}

// The second time the outputs are found among those of the first, so that long drafts are right.
TEST_P(LlmEqualities, Drafts) {
  if (GetParam().device == "cuda") GTEST_SKIP() << "there are drafts on CPUs alone";
  const auto usual = generate(base_config());
  for (const char* drafts :
       {R"({"method": "suffix", "suffix_decoding_max_spec_factor": 32})",
        R"({"method": "ngram", "num_speculative_tokens": 32, "prompt_lookup_max": 1})"}) {
    for (const int max_num_batched_tokens : {512, 7}) {
      EngineConfig config = base_config();
      config.speculative_config = drafts;
      config.max_num_batched_tokens = max_num_batched_tokens;
      LLM llm = load(config);
      expect_equal(llm.generate(prompts(), params()), usual);
      expect_equal(llm.generate(prompts(), params()), usual);
    }
  }
}

// Of the model itself, and of another with as many tokens. The second time prompts are found.
TEST_P(LlmEqualities, DraftModels) {
  if (GetParam().device == "cuda") GTEST_SKIP() << "there are drafts on CPUs alone";
  if (GetParam().is_hybrid()) GTEST_SKIP() << "recurrent layers can't draft";
  if (GetParam().checkpoint == "mistral_window") GTEST_SKIP() << "no layer keeps all tokens";
  const auto usual = generate(base_config());
  std::vector<std::string> models = {GetParam().path()};
  if (load(base_config()).engine().info().vocab_size == 384) {
    models.push_back(test::source_path("tests/goldens/qwen3_tied"));
  }
  for (const std::string& model : models) {
    for (const int max_num_batched_tokens : {512, 7}) {
      EngineConfig config = base_config();
      config.speculative_config = fmt::format(
          R"({{"method": "draft_model", "model": "{}", "num_speculative_tokens": 4}})", model);
      config.max_num_batched_tokens = max_num_batched_tokens;
      LLM llm = load(config);
      expect_equal(llm.generate(prompts(), params()), usual);
      expect_equal(llm.generate(prompts(), params()), usual);
    }
  }
}

TEST_P(LlmEqualities, BlockSizes) {
  const auto small = generate(base_config());
  for (const int block_size : {32, 48, 256}) {
    EngineConfig config = base_config();
    config.kvcache_block_size = block_size;
    expect_equal(generate(config), small);
  }
}

std::vector<Case> all_cases() {
  // Reduced to those that differ in what the engine keeps of them, and mixtures.
  const auto checkpoints = test::full_or_reduced<std::vector<const char*>>(
      {"glm4",         "granite",      "llama2",          "llama3",
       "llama_biases", "llama_linear", "mistral_window",  "olmo3",
       "qwen2_tied",   "qwen2_window", "qwen3_odd_vocab", "qwen3_tied",
       "qwen3_yarn",   "gemma2",       "gemma3",          "qwen2_moe",
       "glm4_moe",     "gpt_oss",      "qwen3_5",         "qwen3_5_moe",
       "qwen3_next",   "olmo_hybrid"},
      {"mistral_window", "olmo3", "qwen3_odd_vocab", "gemma2", "gpt_oss", "qwen3_5"});
  std::vector<Case> cases;
  for (const char* checkpoint : checkpoints) {
    for (const char* dtype : {"bfloat16", "float32"}) cases.push_back({checkpoint, dtype});
  }
  // Pieces of several formats in one weight, experts in codes, scales of 8 bits, and each layout
  // that is rounded to.
  for (const char* dtype : {"bfloat16", "float32"}) {
    for (const char* file : {"gguf_llama", "gguf_gpt_oss", kKQuants})
      cases.push_back({file, dtype});
    for (const char* to : {"int4", "int8", "fp8"})
      cases.push_back({"qwen3_tied", dtype, "cpu", to});
  }
#ifdef NANOVLLM_WITH_CUDA
  for (const char* checkpoint :
       {"qwen3_tied", "llama_biases", "gemma2", "olmo3", "qwen3_5", "olmo_hybrid"}) {
    for (const char* dtype : {"bfloat16", "float32"}) cases.push_back({checkpoint, dtype, "cuda"});
  }
  for (const char* file : {"gguf_llama", "gguf_gpt_oss", kKQuants}) {
    cases.push_back({file, "bfloat16", "cuda"});
  }
  for (const char* to : {"int4", "int8", "fp8"}) {
    cases.push_back({"qwen3_tied", "bfloat16", "cuda", to});
  }
#endif
  return cases;
}

std::string name_of(const ::testing::TestParamInfo<Case>& one) {
  return one.param.device + "_" + one.param.checkpoint + "_" + one.param.dtype +
         (one.param.quantization.empty() ? "" : "_") + one.param.quantization;
}

std::vector<Case> hybrid_cases() {
  std::vector<Case> cases;
  for (const char* checkpoint : kHybrids) {
    for (const char* dtype : {"bfloat16", "float32"}) {
      cases.push_back({checkpoint, dtype});
#ifdef NANOVLLM_WITH_CUDA
      cases.push_back({checkpoint, dtype, "cuda"});
#endif
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Goldens, LlmEqualities, ::testing::ValuesIn(all_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Goldens, HybridEqualities, ::testing::ValuesIn(hybrid_cases()), name_of);

}  // namespace
}  // namespace nanovllm
