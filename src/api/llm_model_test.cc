// The whole engine on the demo model: what a request gets depends on nothing but itself.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "api/outputs_testing.h"
#include "base/testing.h"
#include "nanovllm/chat.h"
#include "nanovllm/llm.h"

namespace nanovllm {
namespace {

using test::expect_equal;

const std::string kModel = test::source_path("models/demo");
constexpr int kMaxTokens = test::full_or_reduced(48, 24);

EngineConfig demo_config() {
  EngineConfig config;
  config.device = "cpu";
  config.num_threads = 2;
  config.num_kvcache_blocks = 256;
  config.kvcache_block_size = 16;
  config.max_model_len = 512;
  return config;
}

const std::vector<Prompt>& demo_prompts() {
  static const std::vector<Prompt> all = {
      "Once upon a time there was a little girl",
      "Once upon a time there was a little girl who had a red ball and a blue box. She",
      "Once upon a time there was a little girl who had a red ball and a blue box. One day",
      "The dog",
      "Tom and Lily were friends. They liked to play in the park. Tom had a new car. Lily said,",
      "Tom and Lily were friends. They liked to play in the park. Tom had a new car. Tom said,",
  };
  return all;
}

std::vector<SamplingParams> demo_params() {
  std::vector<SamplingParams> all(demo_prompts().size());
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].temperature = i % 2 == 0 ? 0 : 0.8;
    all[i].seed = 10 + i;
    all[i].max_tokens = kMaxTokens;
    all[i].ignore_eos = true;
    all[i].logprobs = 1;
  }
  all[1].n = 3;
  all[3].repetition_penalty = 1.2;
  return all;
}

struct Result {
  std::vector<RequestOutput> outputs;
  int num_preemptions = 0;
};

Result run(const EngineConfig& config) {
  LLM llm(kModel, config);
  Result result;
  result.outputs = llm.generate(demo_prompts(), demo_params());
  for (const auto& output : result.outputs) result.num_preemptions += output.num_preemptions;
  return result;
}

// Every test compares, bit by bit, with this run: all requests in one batch.
class LlmOnTheDemoModel : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { base_ = run(demo_config()); }
  static void TearDownTestSuite() { base_.reset(); }
  static std::optional<Result> base_;
};

std::optional<Result> LlmOnTheDemoModel::base_;

TEST_F(LlmOnTheDemoModel, WritesTextOfTheLengthAskedFor) {
  EXPECT_EQ(base_->num_preemptions, 0);
  for (const RequestOutput& output : base_->outputs) {
    for (const CompletionOutput& completion : output.outputs) {
      EXPECT_EQ(std::ssize(completion.token_ids), kMaxTokens);
      EXPECT_FALSE(completion.text.empty());
    }
  }
}

TEST_F(LlmOnTheDemoModel, OneRequestAtATimeGivesTheSame) {
  EngineConfig config = demo_config();
  config.max_num_seqs = 1;
  expect_equal(run(config).outputs, base_->outputs);
}

TEST_F(LlmOnTheDemoModel, PrefixHitsGiveTheSame) {
  LLM llm(kModel, demo_config());
  const auto first = llm.generate(demo_prompts(), demo_params());
  const auto second = llm.generate(demo_prompts(), demo_params());
  for (const RequestOutput& output : second) {
    if (output.prompt_token_ids.size() > 16) {
      EXPECT_GT(output.num_cached_tokens, 0);
    }
  }
  expect_equal(first, base_->outputs);
  expect_equal(second, base_->outputs);
  EngineConfig config = demo_config();
  config.enable_prefix_caching = false;
  expect_equal(run(config).outputs, base_->outputs);
}

TEST_F(LlmOnTheDemoModel, AFullyCachedPromptGivesTheSame) {
  LLM llm(kModel, demo_config());
  std::vector<int32_t> ids = llm.engine().encode(std::get<std::string>(demo_prompts()[4]));
  ids.resize(16);
  SamplingParams one = demo_params()[4];
  const auto first = llm.generate({ids}, one);
  const auto second = llm.generate({ids}, one);
  EXPECT_EQ(first[0].num_cached_tokens, 0);
  EXPECT_EQ(second[0].num_cached_tokens, 15);
  expect_equal(first, second);
}

TEST_F(LlmOnTheDemoModel, AnyChunkSizeGivesTheSame) {
  for (const int chunk : {1, 5, 17}) {
    EngineConfig config = demo_config();
    config.max_num_batched_tokens = chunk;
    expect_equal(run(config).outputs, base_->outputs);
  }
}

TEST_F(LlmOnTheDemoModel, PreemptionGivesTheSame) {
  for (const bool caching : {true, false}) {
    EngineConfig config = demo_config();
    config.num_kvcache_blocks = 12;
    config.enable_prefix_caching = caching;
    const Result tight = run(config);
    EXPECT_GT(tight.num_preemptions, 0);
    expect_equal(tight.outputs, base_->outputs);
  }
}

TEST_F(LlmOnTheDemoModel, AnyNumberOfThreadsGivesTheSame) {
  for (const int num_threads : {1, 3}) {
    EngineConfig config = demo_config();
    config.num_threads = num_threads;
    expect_equal(run(config).outputs, base_->outputs);
  }
}

TEST_F(LlmOnTheDemoModel, AnyBlockSizeGivesTheSame) {
  EngineConfig config = demo_config();
  config.kvcache_block_size = 48;
  config.num_kvcache_blocks = 64;
  expect_equal(run(config).outputs, base_->outputs);
}

TEST_F(LlmOnTheDemoModel, PromptLogprobsAreTheSameInChunks) {
  SamplingParams asked;
  asked.temperature = 0;
  asked.max_tokens = 1;
  asked.prompt_logprobs = 2;
  LLM whole(kModel, demo_config());
  EngineConfig config = demo_config();
  config.max_num_batched_tokens = 3;
  LLM chunked(kModel, config);
  const auto a = whole.generate({demo_prompts()[2]}, asked),
             b = chunked.generate({demo_prompts()[2]}, asked);
  ASSERT_EQ(a[0].prompt_logprobs.size(), a[0].prompt_token_ids.size());
  ASSERT_EQ(b[0].prompt_logprobs.size(), a[0].prompt_logprobs.size());
  for (size_t i = 1; i < a[0].prompt_logprobs.size(); ++i) {
    const PositionLogprobs &x = a[0].prompt_logprobs[i].value(), &y = *b[0].prompt_logprobs[i];
    ASSERT_EQ(x.size(), y.size());
    EXPECT_EQ(x[0].token_id, a[0].prompt_token_ids[i]);
    EXPECT_LE(x[0].logprob, 0);
    for (size_t k = 0; k < x.size(); ++k) {
      EXPECT_EQ(x[k].token_id, y[k].token_id);
      EXPECT_EQ(x[k].logprob, y[k].logprob);
    }
  }
}

// From text and messages to text; golden.json: see models/demo/README.md. No margin of its
// float32 run is below 0.01.
TEST(LlmModel, WritesWhatTransformersWrites) {
  const auto golden = nlohmann::ordered_json::parse(std::ifstream(kModel + "/golden.json"));
  const auto chat_template = ChatTemplate::load(kModel);
  std::vector<Prompt> prompts;
  for (const auto& item : golden.at("cases")) {
    const bool chat = item.contains("messages");
    prompts.push_back(chat ? chat_template->render(item["messages"], nullptr, true, {})
                           : item.at("prompt").get<std::string>());
    EXPECT_EQ(std::get<std::string>(prompts.back()), item.at("prompt"));
  }
  EngineConfig config = demo_config();
  config.dtype = "float32";
  const auto outputs =
      LLM(kModel, config)
          .generate(prompts, {.temperature = 0, .max_tokens = golden.at("max_tokens")});
  ASSERT_EQ(outputs.size(), 4u);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& expected = golden["cases"][i]["float32"];
    EXPECT_EQ(outputs[i].prompt_token_ids, golden["cases"][i]["prompt_token_ids"]);
    EXPECT_EQ(outputs[i].outputs[0].token_ids, expected["token_ids"]);
    EXPECT_EQ(outputs[i].outputs[0].text, expected["text"]);
  }
}

TEST(LlmModel, TellsWhichEosItWasButForTheTokenizers) {
  LLM llm(kModel, demo_config());
  const int32_t im_end = 4098, endoftext = 4096;
  const auto ended_by = [&](int32_t id) {
    SamplingParams params = {.temperature = 0, .logit_bias = {{id, 100.0f}}};
    return llm.generate({"Once upon a time"}, params)[0].outputs[0];
  };
  EXPECT_EQ(ended_by(im_end).finish_reason, FinishReason::kStop);
  EXPECT_EQ(ended_by(im_end).stop_reason, StopReason());
  EXPECT_EQ(ended_by(endoftext).finish_reason, FinishReason::kStop);
  EXPECT_EQ(ended_by(endoftext).stop_reason, StopReason(endoftext));
}

TEST(LlmModel, TheHeadersExampleWorksWordForWord) {
  std::filesystem::current_path(test::source_path(""));
  nanovllm::LLM llm("models/demo");
  auto outputs = llm.generate({"Once upon a time"}, {.temperature = 0});
  ASSERT_EQ(outputs.size(), 1u);
  SamplingParams greedy;
  greedy.temperature = 0;
  const auto expected = llm.generate({"Once upon a time"}, std::vector<SamplingParams>{greedy});
  EXPECT_EQ(outputs[0].outputs[0].token_ids, expected[0].outputs[0].token_ids);
  EXPECT_EQ(outputs[0].outputs[0].text, expected[0].outputs[0].text);
}

TEST(LlmEngine, RefusesFoldersThatAreNoModel) {
  EXPECT_THROW(LLM("/nowhere/at/all"), Error);
  EngineConfig config = demo_config();
  config.kvcache_block_size = 17;
  EXPECT_THROW(LLM(kModel, config), Error);
}

TEST(LlmEngine, EncodesAndDecodes) {
  const LLMEngine engine(kModel, demo_config());
  const auto ids = engine.encode("Once upon a time");
  EXPECT_FALSE(ids.empty());
  EXPECT_EQ(engine.decode(ids), "Once upon a time");
  EXPECT_EQ(engine.info().num_kvcache_blocks, 256);
  EXPECT_EQ(engine.info().max_model_len, 512);
}

}  // namespace
}  // namespace nanovllm
