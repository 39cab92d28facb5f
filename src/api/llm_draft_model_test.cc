// Draft models, from their files to their guesses. That they change no token is
// llm_equalities_test.cc's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "api/outputs_testing.h"
#include "base/testing.h"
#include "nanovllm/error.h"
#include "nanovllm/llm.h"

namespace nanovllm {
namespace {

std::string golden(const char* name) {
  return test::source_path(std::string("tests/goldens/") + name);
}

EngineConfig config_with(const std::string& draft, const std::string& more = "") {
  EngineConfig config;
  config.device = "cpu";
  config.num_threads = 2;
  config.kvcache_block_size = 16;
  config.num_kvcache_blocks = 128;
  config.speculative_config = fmt::format(
      R"({{"method": "draft_model", "model": "{}", "num_speculative_tokens": 4{}}})", draft, more);
  return config;
}

std::string refusal(const std::string& model, const EngineConfig& config) {
  try {
    const LLM llm(model, config);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(LlmDraftModel, AModelGuessesItsOwnTokens) {
  LLM llm(golden("qwen3_tied"), config_with(golden("qwen3_tied")));
  std::vector<Prompt> prompts;
  std::vector<SamplingParams> params;
  for (int i = 0; i < 6; ++i) {
    std::vector<int32_t> ids(20 + 9 * i);
    for (size_t p = 0; p < ids.size(); ++p) ids[p] = static_cast<int32_t>((7 * p + 31 * i) % 300);
    prompts.emplace_back(std::move(ids));
    SamplingParams& one = params.emplace_back();
    one.temperature = i % 2;
    one.top_p = i > 2 ? 0.9 : 1.0;
    one.min_p = i > 3 ? 0.01 : 0.0;
    one.n = i % 2 == 0 ? 1 : 2;
    one.max_tokens = 60;
    one.ignore_eos = true;
  }
  int num_drafted = 0, num_accepted = 0;
  for (int round = 0; round < 2; ++round) {  // then prompts are found
    llm.generate(prompts, params, [&](const auto&, const StepStats& step) {
      num_drafted += step.num_draft_tokens;
      num_accepted += step.num_accepted_tokens();
      return true;
    });
  }
  EXPECT_GT(num_drafted, 0);
  EXPECT_EQ(num_accepted, num_drafted);
}

// It is there once, beside the ranks; and it is computed again where the model is.
TEST(LlmDraftModel, RanksAndPreemptionChangeNoToken) {
  std::vector<Prompt> prompts;
  for (int i = 0; i < 4; ++i) prompts.emplace_back(std::vector<int32_t>(30 + i, 5 + i));
  SamplingParams params;
  params.seed = 3;
  params.max_tokens = 60;
  params.ignore_eos = true;
  params.logprobs = 2;
  EngineConfig config = config_with(golden("qwen3_tied"));
  config.dtype = "float32";
  config.num_kvcache_blocks = 14;
  for (const int num_ranks : {1, 2}) {
    config.tensor_parallel_size = num_ranks;
    EngineConfig without = config;
    without.speculative_config = "";
    without.num_kvcache_blocks = 128;
    const auto outputs = LLM(golden("qwen3_tied"), config).generate(prompts, params);
    test::expect_equal(outputs, LLM(golden("qwen3_tied"), without).generate(prompts, params));
    int num_preemptions = 0;
    for (const RequestOutput& output : outputs) num_preemptions += output.num_preemptions;
    EXPECT_GT(num_preemptions, 0);
  }
}

TEST(LlmDraftModel, ItsKvHasRoomInTheSameBlocks) {
  EngineConfig config = config_with(golden("qwen3_tied"));
  config.num_kvcache_blocks = -1;
  config.kv_cache_memory = 8 << 20;
  LLM with(golden("qwen3_tied"), config);
  config.speculative_config = "";
  LLM without(golden("qwen3_tied"), config);
  const EngineInfo &one = with.engine().info(), &other = without.engine().info();
  EXPECT_EQ(one.num_kvcache_blocks, other.num_kvcache_blocks / 2);
  EXPECT_EQ(one.kv_bytes_per_token, 2 * other.kv_bytes_per_token);
  EXPECT_LE(one.kv_cache_bytes, 8 << 20);
  EXPECT_EQ(one.kv_groups.size(), other.kv_groups.size() + 1);
}

// Layers with windows are in a group of their own, with which a draft model has no KV.
TEST(LlmDraftModel, ItsKvGoesWithOneGroup) {
  EngineConfig config = config_with(golden("gemma2"));
  config.num_kvcache_blocks = -1;
  config.kv_cache_memory = 8 << 20;
  LLM with(golden("gemma2"), config);
  config.speculative_config = "";
  LLM without(golden("gemma2"), config);
  const EngineInfo &one = with.engine().info(), &other = without.engine().info();
  ASSERT_GT(other.kv_windows.size(), 1U);
  EXPECT_EQ(one.kv_bytes_per_token, 2 * other.kv_bytes_per_token);
  EXPECT_LE(one.kv_cache_bytes, 8 << 20);
  EXPECT_GT(one.kv_cache_bytes, 7 << 20);
}

TEST(LlmDraftModel, WhatIsNoneForThisModelIsRefused) {
  const std::string target = golden("qwen3_tied"), kOther = "speculative_config, the draft model: ";
  EXPECT_EQ(refusal(target, config_with(target)), "");
  EXPECT_EQ(refusal(target, config_with(golden("llama2"))), "");
  EXPECT_EQ(refusal(target, config_with("/nowhere")).find(kOther + "/nowhere"), 0U);
  EXPECT_EQ(refusal(target, config_with(golden("qwen3_odd_vocab"))),
            fmt::format("{}{} has another vocabulary than {}: it has 389 tokens and not 384; take "
                        "one with the same tokens",
                        kOther, golden("qwen3_odd_vocab"), target));
  const std::string demo = test::source_path("models/demo"),
                    gguf = test::source_path("tests/data/gguf_llama.gguf");
  EXPECT_EQ(
      refusal(demo, config_with(gguf))
          .find(fmt::format("{}{} has another vocabulary than {}: its token ", kOther, gguf, demo)),
      0U);
  EXPECT_NE(refusal(golden("qwen3_5"), config_with(golden("qwen3_5")))
                .find("a model with recurrent layers can't be a draft model"),
            std::string::npos);
  EXPECT_NE(refusal(golden("mistral_window"), config_with(target))
                .find("a draft model needs a target with layers that keep all tokens"),
            std::string::npos);
  EXPECT_NE(refusal(target, config_with(target, R"(, "max_model_len": 5000)"))
                .find("max_model_len is 5000, but"),
            std::string::npos);
  EXPECT_NE(refusal(target, config_with(target, R"(, "quantization": "int3")"))
                .find("quantization must be one of"),
            std::string::npos);
}

// What would follow the tokens that it sees is not guessed.
// A draft model is loaded only where nothing is wrong with what it drafts for.
TEST(LlmDraftModel, MistakesOfTheModelComeFirst) {
  const std::string target = golden("qwen3_tied");
  EngineConfig config = config_with("/nowhere");
  config.max_model_len = 1 << 24;
  EXPECT_NE(refusal(target, config).find("max_model_len is 16777216"), std::string::npos);
  config = config_with(test::source_path("models/demo"));
  config.device = "gpu";
  EXPECT_NE(refusal(target, config), "");
  EXPECT_EQ(refusal(target, config).find("the draft model"), std::string::npos);
}

TEST(LlmDraftModel, MaySeeFewerTokensThanTheModel) {
  LLM llm(golden("qwen3_tied"), config_with(golden("qwen3_tied"), R"(, "max_model_len": 40)"));
  SamplingParams params;
  params.temperature = 0;
  params.ignore_eos = true;
  params.max_tokens = 60;
  int num_tokens = 10, last_drafted = 0;
  llm.generate({std::vector<int32_t>(10, 5)}, params, [&](const auto&, const StepStats& step) {
    num_tokens += static_cast<int>(step.num_generation_tokens);
    if (step.num_draft_tokens > 0) last_drafted = num_tokens;
    return true;
  });
  EXPECT_EQ(num_tokens, 70);
  EXPECT_LE(last_drafted, 42);
}

}  // namespace
}  // namespace nanovllm
