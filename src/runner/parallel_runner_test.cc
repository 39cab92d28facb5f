// Ranks as threads: together they give what one gives, and none outlives another's death.
#include "runner/parallel_runner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <thread>

#include "backend/registry.h"
#include "io/testing.h"
#include "models/testing.h"

namespace nanovllm {
namespace {

using nanovllm::testing::error_of;
using nanovllm::testing::golden_dir;

constexpr int kBlocksOfText = 96;

EngineConfig small_config(int num_ranks, const std::string& dtype = "auto") {
  EngineConfig config;
  config.device = "cpu";
  config.dtype = dtype;
  config.tensor_parallel_size = num_ranks;
  config.num_threads = 2;
  config.kvcache_block_size = 16;
  config.num_kvcache_blocks = kBlocksOfText;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 512;
  return config;
}

// A prompt with its continuation, computed in one step; what is sampled comes after it.
struct Text {
  std::vector<int32_t> token_ids;
  std::vector<int32_t> blocks = std::vector<int32_t>(kBlocksOfText);
  SamplingRow sampling = {.temperature = 1, .seed = 7, .num_logprobs = 3};

  explicit Text(std::vector<int32_t> ids) : token_ids(std::move(ids)) {
    std::iota(blocks.begin(), blocks.end(), 0);
  }
  StepInput step() {
    const int count = static_cast<int>(token_ids.size());
    SequenceInput input{.token_ids = token_ids, .num_new_tokens = count, .block_table = blocks};
    input.sample = true;
    input.prompt_logprobs_begin = 1;
    input.prompt_logprobs_end = count;
    input.num_prompt_logprobs = 0;
    StepInput step;
    step.sequences = {input};
    return step;
  }
  SamplingRow row() const {
    SamplingRow row = sampling;
    row.position = token_ids.size();
    return row;
  }
};

StepOutput run_step(Runner& runner, const StepInput& input, std::span<const SamplingRow> rows) {
  runner.submit(input);
  runner.draw(rows);
  return runner.collect();
}

StepOutput run_step(Runner& runner, Text& text) {
  const SamplingRow row = text.row();
  return run_step(runner, text.step(), std::span(&row, 1));
}

struct RankCase {
  const char* checkpoint;
  int num_ranks;
  const char* device = "cpu";
};

bool has_devices(const std::string& device, int count) {
  try {
    make_communicator_group(device, count);
    return true;
  } catch (const Error&) {
    return false;
  }
}

class ParallelRunnerGoldens : public ::testing::TestWithParam<RankCase> {};

// Every token of the golden continuations that transformers chose by a clear margin is the most
// likely one (models/golden_test.cc says why by how much).
TEST_P(ParallelRunnerGoldens, GreedyTokensAreThoseOfTransformers) {
  const auto [checkpoint, num_ranks, device] = GetParam();
  if (!has_devices(device, num_ranks)) GTEST_SKIP() << "fewer GPUs than ranks";
  const auto document =
      nlohmann::json::parse(std::ifstream(golden_dir(checkpoint) + "/golden.json"));
  const std::pair<const char*, float> margins[] = {{"float32", 0.01f}, {"bfloat16", 0.25f}};
  for (const auto& [dtype, least_margin] : margins) {
    EngineInfo info;
    EngineConfig config = small_config(num_ranks, dtype);
    config.device = device;
    const auto runner = make_runner(load_model_config(golden_dir(checkpoint)), config, info);
    for (const auto& item : document.at("cases")) {
      const std::vector<int32_t> prompt = item.at("ids"), continuation = item.at("greedy");
      const std::vector<float> margin = item.at("margins");
      Text text(prompt);
      text.token_ids.insert(text.token_ids.end(), continuation.begin(), continuation.end());
      const StepOutput step = run_step(*runner, text);
      const SequenceOutput& output = step.sequences.at(0);
      ASSERT_EQ(output.prompt_logprobs.size(), text.token_ids.size() - 1);
      for (size_t i = 0; i < continuation.size(); ++i) {
        if (margin[i] <= least_margin) continue;
        const SamplingResult& result = output.prompt_logprobs[prompt.size() - 1 + i];
        EXPECT_EQ(result.token_id, continuation[i]);
        EXPECT_EQ(result.logprobs.at(0).rank, 1) << dtype << ", token " << i;
      }
    }
  }
}

std::string name_of(const ::testing::TestParamInfo<RankCase>& test) {
  return fmt::format("{}_{}", test.param.checkpoint, test.param.num_ranks);
}
INSTANTIATE_TEST_SUITE_P(Cpu, ParallelRunnerGoldens,
                         ::testing::Values(RankCase{"qwen3_tied", 1}, RankCase{"qwen3_tied", 2},
                                           RankCase{"qwen3_odd_vocab", 4},
                                           RankCase{"qwen2_window", 2}, RankCase{"llama2", 2},
                                           RankCase{"llama2", 4}, RankCase{"llama_biases", 8},
                                           RankCase{"mistral_window", 4}, RankCase{"olmo2", 2}),
                         name_of);
#ifdef NANOVLLM_WITH_CUDA
INSTANTIATE_TEST_SUITE_P(
    Cuda, ParallelRunnerGoldens,
    ::testing::Values(RankCase{"qwen3_tied", 2, "cuda"}, RankCase{"qwen3_odd_vocab", 4, "cuda"},
                      RankCase{"llama2", 2, "cuda"}, RankCase{"llama2", 4, "cuda"},
                      RankCase{"mistral_window", 4, "cuda"}, RankCase{"olmo2", 2, "cuda"},
                      RankCase{"granite", 2, "cuda"}),
    name_of);
#endif

TEST(ParallelRunner, ARankCostsItsShareOfALayer) {
  const ModelConfig model = load_model_config(golden_dir("llama2"));
  EngineInfo info;
  Progress progress;
  const StepCost one = make_runner(model, small_config(1), info)->step_cost();
  const StepCost two = make_runner(model, small_config(2), info, &progress)->step_cost();
  EXPECT_DOUBLE_EQ(two.per_token, one.per_token / 2);
  EXPECT_DOUBLE_EQ(two.per_pair, one.per_pair / 2);
  EXPECT_GT(progress.count(), 0u);
}

TEST(ParallelRunner, InfoCountsTheBytesOfAllRanks) {
  const ModelConfig model = load_model_config(golden_dir("llama2"));
  EngineInfo one, four;
  make_runner(model, small_config(1), one);
  const auto runner = make_runner(model, small_config(4), four);
  EXPECT_EQ(four.num_parameters, one.num_parameters);
  EXPECT_EQ(four.kv_bytes_per_token, one.kv_bytes_per_token);
  EXPECT_EQ(four.kv_cache_bytes, one.kv_cache_bytes);
  EXPECT_GE(four.weight_bytes, one.weight_bytes);
  EXPECT_LT(four.weight_bytes, 2 * one.weight_bytes);
  EXPECT_EQ(four.device.substr(0, 9), "4 x cpu (");
  EXPECT_EQ(four.device_type, "cpu");
  EXPECT_EQ(runner->num_kvcache_blocks(), kBlocksOfText);
}

TEST(ParallelRunner, HeadsThatTheRanksCannotShareAreRefused) {
  EngineInfo info;
  const Error error = error_of(
      [&] { make_runner(load_model_config(golden_dir("llama2")), small_config(3), info); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(std::string(error.what()),
            golden_dir("llama2") +
                ": the 4 attention heads can't be shared by tensor_parallel_size 3; choose one "
                "that divides them");
}

// A rank that joins its group, exchanges something in every step, and dies when it is told to.
class FakeRank final : public Runner {
 public:
  FakeRank(CommunicatorGroup& group, int rank, int dies_in_step)
      : backend_(make_cpu_backend(1)),
        dies_in_step_(dies_in_step),
        num_blocks_(static_cast<int>(group.min_over_ranks(rank, 10 - rank))) {
    group.join(rank, *backend_);
  }

  int num_kvcache_blocks() const override { return num_blocks_; }
  void submit(const StepInput&) override {
    if (num_steps_++ == dies_in_step_) throw Error(ErrorCode::kOutOfMemory, "a rank has died");
    float value = static_cast<float>(backend_->rank() + 1);
    backend_->all_reduce(Tensor(&value, DType::kFloat32, {1}));
    done_.results.assign(
        1, {.token_id = static_cast<int32_t>(value) * 100 + num_steps_, .logprobs = {}});
    done_.sequences.assign(1, {.sampled = done_.results, .prompt_logprobs = {}});
  }
  void draw(std::span<const SamplingRow>) override {}
  StepOutput collect() override { return std::move(done_); }
  void abandon() noexcept override {}

 private:
  const std::unique_ptr<Backend> backend_;
  const int dies_in_step_;
  const int num_blocks_;
  int num_steps_ = 0;
  StepOutput done_;
};

TEST(ParallelRunner, RanksAgreeOnTheSmallestKvCacheAndTakeEveryStepTogether) {
  auto group = make_communicator_group("cpu", 4);
  CommunicatorGroup& ranks = *group;
  ParallelRunner runner(std::move(group),
                        [&](int rank) { return std::make_unique<FakeRank>(ranks, rank, -1); });
  EXPECT_EQ(runner.num_kvcache_blocks(), 7);
  for (int step = 1; step <= 50; ++step) {
    EXPECT_EQ(run_step(runner, {}, {}).sequences.at(0).sampled[0].token_id, 1000 + step);
  }
}

TEST(ParallelRunner, ARankThatDiesInAStepEndsAllWithItsSentence) {
  for (int dying = 0; dying < 3; ++dying) {
    auto group = make_communicator_group("cpu", 3);
    CommunicatorGroup& ranks = *group;
    ParallelRunner runner(std::move(group), [&](int rank) {
      return std::make_unique<FakeRank>(ranks, rank, rank == dying ? 2 : -1);
    });
    run_step(runner, {}, {});
    run_step(runner, {}, {});
    for (int again = 0; again < 2; ++again) {
      const Error error = error_of([&] { run_step(runner, {}, {}); });
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
      EXPECT_STREQ(error.what(), "a rank has died");
    }
  }
}

TEST(ParallelRunner, ARankThatDiesWhileLoadingEndsAllWithItsSentence) {
  auto group = make_communicator_group("cpu", 3);
  CommunicatorGroup& ranks = *group;
  std::atomic<int> num_made{0};
  const Error error = error_of([&] {
    ParallelRunner(std::move(group), [&](int rank) {
      if (rank == 1) {
        // The others wait for it in min_over_ranks().
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        throw Error(ErrorCode::kCorruptData, "rank 1 can't read its weights");
      }
      auto runner = std::make_unique<FakeRank>(ranks, rank, -1);
      ++num_made;
      return runner;
    });
  });
  EXPECT_EQ(error.code(), ErrorCode::kCorruptData);
  EXPECT_STREQ(error.what(), "rank 1 can't read its weights");
  EXPECT_EQ(num_made, 0);
}

TEST(ParallelRunner, AFolderWithoutWeightsIsRefused) {
  ModelConfig model = load_model_config(golden_dir("llama2"));
  const nanovllm::testing::TempDir empty;
  model.model_dir = empty.path();
  EngineInfo info;
  EXPECT_EQ(error_of([&] { make_runner(model, small_config(2), info); }).code(),
            ErrorCode::kNotFound);
}

}  // namespace
}  // namespace nanovllm
