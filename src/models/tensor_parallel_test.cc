// Ranks as threads of one process: together they compute what one rank computes.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/registry.h"
#include "io/testing.h"
#include "models/layers.h"
#include "models/testing.h"

namespace nanovllm {
namespace {

using testing::error_of;
using testing::golden_dir;
using testing::ModelRig;
using testing::RigOptions;
using testing::root_mean_square;
using testing::Rows;

// What rank `rank` of a group computes, or a model alone.
Rows compute(const std::string& name, DType dtype, CommunicatorGroup* group = nullptr, int rank = 0,
             const RigOptions& options = {}) {
  auto backend = make_cpu_backend(1);
  if (group != nullptr) group->join(rank, *backend);
  ModelRig rig(golden_dir(name), dtype, std::move(backend), 16, options);
  const int num_ids = std::min(380, rig.config().vocab_size);
  std::vector<int32_t> ids;
  for (int i = 0; i < 40; ++i) ids.push_back(i * 37 % num_ids);
  auto rows = rig.step({{0, ids}})[0];
  rows.push_back(rig.step({{0, {3}}})[0][0]);
  return rows;
}

std::vector<double> differences(const Rows& rows, const Rows& expected) {
  std::vector<double> result;
  EXPECT_EQ(rows.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(rows[i].size(), expected[i].size());
    for (size_t v = 0; v < expected[i].size(); ++v) {
      result.push_back(double{rows[i][v]} - expected[i][v]);
    }
  }
  return result;
}

struct Case {
  const char* checkpoint;
  int world_size;
  bool expert_parallel = false;
  std::optional<RoundedFormat> rounding = {};
};

class TensorParallel : public ::testing::TestWithParam<Case> {};

TEST_P(TensorParallel, RanksTogetherComputeWhatOneDoes) {
  const auto [name, world_size, expert_parallel, rounding] = GetParam();
  const RigOptions alone = {.rounding = rounding};
  const RigOptions shared = {.expert_parallel = expert_parallel, .rounding = rounding};
  const Rows exact = compute(name, DType::kFloat32, nullptr, 0, alone);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const auto group = make_communicator_group("cpu", world_size);
    std::vector<Rows> results(world_size);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < world_size; ++rank) {
      ranks.emplace_back([&, rank, name = name] {
        results[rank] = compute(name, dtype, group.get(), rank, shared);
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (int rank = 0; rank < world_size; ++rank) {
      ASSERT_EQ(results[rank], results[0]) << "the ranks disagree";
    }
    const std::vector<double> errors = differences(results[0], exact);
    if (dtype == DType::kFloat32) {
      EXPECT_LT(
          std::abs(*std::ranges::max_element(errors, {}, [](double e) { return std::abs(e); })),
          1e-3);
    } else {  // rounding sends rows to other experts: no single row tells
      EXPECT_LT(
          root_mean_square(errors),
          1.5 * root_mean_square(differences(compute(name, dtype, nullptr, 0, alone), exact)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, TensorParallel,
    ::testing::Values(Case{"qwen3_tied", 2},
                      Case{"qwen3_odd_vocab", 2},  // one KV head for both, an odd vocabulary
                      Case{"qwen3_odd_vocab", 4}, Case{"qwen2_tied", 2}, Case{"llama2", 4},
                      Case{"llama_biases", 2}, Case{"llama_biases", 8}, Case{"mistral_window", 2},
                      Case{"gemma2", 2}, Case{"gemma3", 2}, Case{"phi3", 2}, Case{"granite", 2},
                      Case{"smollm3", 2}, Case{"olmo2", 2}, Case{"olmo3", 4}, Case{"olmo2", 6},
                      Case{"glm4", 2}, Case{"qwen3_moe", 2}, Case{"qwen2_moe", 2},
                      Case{"mixtral", 2}, Case{"olmoe", 2}, Case{"glm4_moe", 2}, Case{"gpt_oss", 2},
                      Case{"gpt_oss_plain", 2}, Case{"gpt_oss", 4}, Case{"qwen3_5", 2},
                      Case{"qwen3_next", 2}, Case{"olmo_hybrid", 4}, Case{"gguf_qwen35", 2},
                      Case{"gguf_qwen3next", 2},
                      Case{"gguf_qwen35", 2, false, RoundedFormat::kInt8}, Case{"gguf_qwen2moe", 2},
                      Case{"qwen3_moe", 2, true}, Case{"qwen2_moe", 2, true},
                      Case{"gpt_oss", 2, true}, Case{"mixtral", 4, true},
                      // Shares that begin inside a group of 32 and a block of 128.
                      Case{"qwen3_fp8", 2}, Case{"gguf_llama", 2}, Case{"gguf_glm4", 2}),
    [](const auto& test) {
      return std::string(test.param.checkpoint) + "_" + std::to_string(test.param.world_size) +
             (test.param.expert_parallel ? "_expert_parallel" : "") +
             (test.param.rounding ? "_rounded" : "");
    });

class FakeRank final : public CpuBackend {
 public:
  FakeRank(int rank, int world_size)
      : CpuBackend(CpuOptions{1, {}}), rank_(rank), world_size_(world_size) {}
  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }

 private:
  int rank_, world_size_;
};

// Ranks that share experts out hold the biases of their own alone; those that split them all add
// whole biases behind `down`.
TEST(ExpertParallel, BiasesOfOtherRanksTakeNoMemory) {
  const auto bytes = [](bool expert_parallel) {
    ModelRig rig(golden_dir("gpt_oss"), DType::kFloat32, std::make_unique<FakeRank>(0, 2), 16,
                 {.expert_parallel = expert_parallel});
    return rig.model().weight_bytes();
  };
  const ModelConfig config = load_model_config(golden_dir("gpt_oss"));
  EXPECT_EQ(bytes(false) - bytes(true), int64_t{config.num_hidden_layers} * config.experts.num / 2 *
                                            config.hidden_size * int64_t{sizeof(float)});
}

ModelConfig some_config() {
  ModelConfig config;
  config.model_dir = "dir";
  config.vocab_size = 1000;
  config.intermediate_size = 96;
  config.num_attention_heads = 12;
  config.num_key_value_heads = 4;
  return config;
}

TEST(ShardSizes, SharesEverythingThatDivides) {
  const ShardSizes sizes(some_config(), FakeRank(1, 2));
  EXPECT_EQ(sizes.num_heads, 6);
  EXPECT_EQ(sizes.num_kv_heads, 2);
  EXPECT_EQ(sizes.first_kv_head, 2);
  EXPECT_EQ(sizes.vocab_size, 500);
  EXPECT_TRUE(sizes.vocab_is_sharded);
}

TEST(ShardSizes, NeighboursHoldTheSameKvHeadWhereThereAreTooFew) {
  ModelConfig config = some_config();
  config.num_key_value_heads = 2;
  for (int rank = 0; rank < 4; ++rank) {
    const ShardSizes sizes(config, FakeRank(rank, 4));
    EXPECT_EQ(sizes.num_kv_heads, 1);
    EXPECT_EQ(sizes.first_kv_head, rank / 2);
  }
}

TEST(ShardSizes, AVocabularyThatDoesNotDivideIsHeldWhole) {
  ModelConfig config = some_config();
  config.vocab_size = 1001;
  const ShardSizes sizes(config, FakeRank(1, 2));
  EXPECT_FALSE(sizes.vocab_is_sharded);
  EXPECT_EQ(sizes.vocab_size, 1001);
}

TEST(ShardSizes, WhatCannotBeSharedIsRefused) {
  const auto message = [](const ModelConfig& config, int world_size) {
    return std::string(error_of([&] { ShardSizes(config, FakeRank(0, world_size)); }).what());
  };
  EXPECT_EQ(
      message(some_config(), 5),
      "dir: the 12 attention heads can't be shared by tensor_parallel_size 5; choose one that "
      "divides them");
  EXPECT_NE(message(some_config(), 3).find("4 key-value heads"), std::string::npos);
  ModelConfig config = some_config();
  config.intermediate_size = 97;
  EXPECT_NE(message(config, 2).find("97 rows of intermediate_size"), std::string::npos);
}

}  // namespace
}  // namespace nanovllm
