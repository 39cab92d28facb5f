#include "runner/kv_cache_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "backend/registry.h"
#include "io/testing.h"
#include "nanovllm/engine_info.h"

namespace nanovllm {
namespace {

using nanovllm::testing::error_of;

constexpr int64_t kBlockBytes = 1000;
const KvCacheDemand kDemand{.block_bytes = kBlockBytes, .block_size = 16, .context = 100};

constexpr int kAll[] = {0};  // one group, which sees everything

DeviceMemory cpu_with(int64_t free, int num_ranks = 1) { return {true, num_ranks, free, free}; }

int num_planned(const EngineConfig& config, const KvCacheDemand& demand,
                const DeviceMemory& memory) {
  return plan_kv_cache(config, demand, memory).num_blocks;
}

EngineConfig config_for(int max_num_seqs) {
  EngineConfig config;
  config.max_num_seqs = max_num_seqs;
  return config;
}

TEST(KvCachePlan, ABlockHoldsItsTokensForTheLayersOfAGroup) {
  const auto backend = make_cpu_backend(1);
  const KvCacheSpec spec{
      .num_kv_heads = 1, .head_dim = 64, .block_size = 16, .dtype = DType::kBFloat16};
  const std::vector<CacheGroup> groups = {{0, {1, 4}}, {8, {0, 3, 5}}, {8, {2, 6}}};
  const auto bytes = static_cast<int64_t>(backend->kv_block_bytes(spec));
  EXPECT_EQ(kv_block_bytes(*backend, spec, groups), 3 * bytes);

  constexpr int kNumBlocks = 5;
  std::vector<char> memory(kNumBlocks * kv_block_bytes(*backend, spec, groups));
  const auto caches = split_kv_memory(*backend, spec, groups, memory.data(), kNumBlocks);
  ASSERT_EQ(caches.size(), 7U);
  for (size_t group = 0; group < groups.size(); ++group) {
    const char* place = memory.data();
    for (const int layer : groups[group].layers) {
      EXPECT_EQ(caches[layer].data, place);
      EXPECT_EQ(caches[layer].group, static_cast<int>(group));
      EXPECT_EQ(caches[layer].num_blocks, kNumBlocks);
      place += kNumBlocks * bytes;
    }
    EXPECT_LE(place, memory.data() + memory.size());
  }
}

// Of a context of 160 tokens in blocks of 16, which has 10 blocks in a group that keeps all, and 3
// where a window sees 20.
TEST(KvCachePlan, ADraftModelHasBlocksOfOneGroup) {
  const auto blocks = [](int64_t num_blocks, const std::vector<int>& windows) {
    return num_draft_blocks(num_blocks, windows, 16, 160);
  };
  EXPECT_EQ(blocks(100, {0}), 100);
  EXPECT_EQ(blocks(100, {0, 0}), 50);
  EXPECT_EQ(blocks(160, {20, 0, 20}), 100);
  EXPECT_EQ(blocks(16, {20, 0, 20}), 10);
  EXPECT_EQ(blocks(1, {20, 0, 20}), 1);
}

TEST(KvCachePlan, ACpuTakesItsShareOfWhatIsFree) {
  EXPECT_EQ(num_planned(config_for(512), kDemand, cpu_with(100'000)), 40);
  EXPECT_EQ(num_planned(config_for(512), kDemand, cpu_with(2500)), 1);
}

TEST(KvCachePlan, StatesHaveAThirdOfTheMemoryOrWhatTheyAreGiven) {
  KvCacheDemand demand = kDemand;
  demand.state_bytes = 3000;
  demand.slot_bytes = 1000;
  const auto plan = [&](const EngineConfig& config, int64_t free) {
    const KvCachePlan planned = plan_kv_cache(config, demand, cpu_with(free));
    return std::pair(planned.num_states, planned.num_blocks);
  };
  EngineConfig config = config_for(512);
  EXPECT_EQ(plan(config, 100'000), std::pair(4, 27));  // of 40,000: one is kept
  EXPECT_EQ(plan(config, 12'000), std::pair(1, 1));    // one sequence at least
  EXPECT_EQ(plan(config_for(2), 100'000), std::pair(2, 14));
  config.enable_prefix_caching = false;
  EXPECT_EQ(plan(config, 100'000), std::pair(4, 28));
  config.enable_prefix_caching = true;
  config.state_cache_memory = 6500;
  EXPECT_EQ(plan(config, 100'000), std::pair(2, 34));
  config.kv_cache_memory = 20'000;  // beside that
  EXPECT_EQ(plan(config, 100'000), std::pair(2, 20));
  config.state_cache_memory.reset();
  EXPECT_EQ(plan(config, 100'000), std::pair(2, 14));
  config.kv_cache_memory.reset();
  config.num_kvcache_blocks = 12;
  EXPECT_EQ(plan(config, 100'000), std::pair(2, 12));
  config.state_cache_memory = 2999;
  EXPECT_EQ(error_of([&] { plan(config, 100'000); }).what(),
            std::string("state_cache_memory is 2999 bytes, but the states of one sequence need "
                        "3000; ask for as much, or leave it out"));
  EXPECT_EQ(plan_kv_cache(config, kDemand, cpu_with(100'000)).num_states, 0);
}

TEST(KvCachePlan, WhereStatesLeaveNoRoomTheMessageSaysWhatBoundsThem) {
  KvCacheDemand demand = kDemand;
  demand.state_bytes = 3000;
  demand.slot_bytes = 1000;
  const auto message = [&](const EngineConfig& config, int64_t free) {
    return std::string(error_of([&] { plan_kv_cache(config, demand, cpu_with(free)); }).what());
  };
  EngineConfig config = config_for(512);
  EXPECT_EQ(message(config, 9000),
            "no room for a KV cache: one block of 16 tokens needs 1000 bytes beside 3000 for the "
            "states of one sequence, and of the 9000 bytes free with the model loaded 3600 may be "
            "used (a share of 0.4); free memory, lower max_num_batched_tokens, or set "
            "kv_cache_memory");
  config.state_cache_memory = 90'000;
  EXPECT_TRUE(message(config, 100'000)
                  .ends_with("lower max_num_batched_tokens or state_cache_memory, or set "
                             "kv_cache_memory"));
  config.num_kvcache_blocks = 20;
  EXPECT_EQ(message(config, 100'000),
            "a KV cache of 20 blocks needs 20000 bytes beside 90000 for states, but 100000 are "
            "free; lower num_kvcache_blocks or kv_cache_memory or state_cache_memory");
  config = config_for(512);
  config.kv_cache_memory = 3999;
  EXPECT_EQ(message(config, 100'000),
            "kv_cache_memory is 3999 bytes, but one block of 16 tokens needs 1000 beside 3000 for "
            "the states of one sequence; raise it, or give states memory of their own with "
            "state_cache_memory");
}

TEST(KvCachePlan, StatesAreKeptInWhatRunningSequencesLeave) {
  KvCacheDemand demand = kDemand;
  demand.state_bytes = 3000;
  demand.slot_bytes = 1000;
  const auto num_slots = [&](const EngineConfig& config) {
    return plan_kv_cache(config, demand, cpu_with(100'000)).num_state_slots;
  };
  EngineConfig config = config_for(512);
  EXPECT_EQ(num_slots(config), 2 * 4 + 1);
  config.max_num_seqs = 1;
  EXPECT_EQ(num_slots(config), 2 + 10);
  config.state_cache_memory = 30'000;
  EXPECT_EQ(num_slots(config), 2 + kMostKept);
  config.enable_prefix_caching = false;
  EXPECT_EQ(num_slots(config), 2);
}

TEST(KvCachePlan, EachRecurrentLayerHasSlotsAndLogsOfItsOwn) {
  const auto backend = make_cpu_backend(1);
  const StateSpec narrow = {1, 2, 16, 32, 4, DType::kFloat32};
  const StateSpec wide = {2, 2, 64, 64, 4, DType::kBFloat16};
  const std::vector<StateGroup> groups = {{narrow, {0, 3}}, {wide, {1}}};
  constexpr int kSlots = 7, kLogs = 3;
  std::vector<char> memory(state_bytes(*backend, groups, kSlots, kLogs));
  const auto caches = split_state_memory(*backend, groups, memory.data(), kSlots, kLogs);
  ASSERT_EQ(caches.size(), 4U);
  EXPECT_EQ(caches[2].slots, nullptr);  // no recurrent layer
  const char* end = memory.data();
  for (const int layer : {0, 3, 1}) {
    const StateBytes bytes = backend->state_bytes(layer == 1 ? wide : narrow);
    EXPECT_EQ(caches[layer].slots, end);
    EXPECT_EQ(caches[layer].logs, end + kSlots * bytes.slot);
    end += kSlots * bytes.slot + kLogs * bytes.log;
  }
  EXPECT_EQ(end, memory.data() + memory.size());
}

TEST(KvCachePlan, EachGroupHasABlockAtLeast) {
  KvCacheDemand demand = kDemand;
  demand.windows = {0, 32, 32};
  EngineConfig config = config_for(4);
  config.num_kvcache_blocks = 3;
  EXPECT_EQ(num_planned(config, demand, cpu_with(100'000)), 3);
  config.num_kvcache_blocks = 2;
  EXPECT_EQ(
      error_of([&] { plan_kv_cache(config, demand, cpu_with(100'000)); }).what(),
      std::string(
          "num_kvcache_blocks is 2, but layers are in 3 groups, each of which needs a block"));
  config.num_kvcache_blocks = -1;
  config.kv_cache_memory = 3 * kBlockBytes;
  EXPECT_EQ(num_planned(config, demand, cpu_with(100'000)), 3);
  config.kv_cache_memory = 3 * kBlockBytes - 1;
  EXPECT_EQ(
      error_of([&] { plan_kv_cache(config, demand, cpu_with(100'000)); }).what(),
      std::string("kv_cache_memory is 2999 bytes, but 3 blocks of 16 tokens, one for each group of "
                  "layers, need 3000"));
}

TEST(KvCachePlan, RanksOnACpuShareIt) {
  EXPECT_EQ(num_planned(config_for(512), kDemand, cpu_with(100'000, 4)), 10);
  EngineConfig config = config_for(512);
  config.kv_cache_memory = 30'000;
  EXPECT_EQ(num_planned(config, kDemand, cpu_with(60'000, 2)), 30);
  EXPECT_EQ(error_of([&] { num_planned(config, kDemand, cpu_with(59'999, 2)); }).code(),
            ErrorCode::kOutOfMemory);
}

TEST(KvCachePlan, NoMoreThanAllSequencesCanUse) {
  // 99 of the 100 tokens are in 7 blocks of 16.
  EXPECT_EQ(num_planned(config_for(1), kDemand, cpu_with(1'000'000)), 7);
  EXPECT_EQ(num_planned(config_for(3), kDemand, cpu_with(1'000'000)), 21);
}

TEST(KvCachePlan, LayersWithAWindowNeedWhatItSeesAndWhatStepsAdd) {
  EngineConfig config = config_for(3);
  config.kvcache_block_size = 16;
  config.max_num_batched_tokens = 40;
  const std::vector<int> windows = {0, 30, 30};
  // 63 blocks for 1,000 tokens, and in each window 3 for 30 tokens wherever they begin.
  EXPECT_EQ(kv_blocks_for(1000, windows, 16), 63 + 3 + 3);
  EXPECT_EQ(context_in(config, {5000, ""}, windows, 69).num_tokens, 63 * 16 + 1);
  EXPECT_EQ(context_in(config, {5000, ""}, windows, 68).num_tokens, 62 * 16 + 1);
  EXPECT_EQ(context_in(config, {5000, ""}, std::vector<int>{30}, 3).num_tokens, 5000);
  // With two steps of 40 tokens, 8 for 110 tokens.
  const KvCacheDemand demand = {
      .block_bytes = 1, .block_size = 16, .context = 1001, .windows = windows};
  EXPECT_EQ(num_planned(config, demand, cpu_with(1'000'000)), 3 * (63 + 8 + 8));
}

TEST(KvCachePlan, ARequestsLastTokenNeedsNoRoom) {
  const auto blocks = [](int context) {
    return num_planned(config_for(2), {.block_bytes = 1, .block_size = 256, .context = context},
                       cpu_with(1'000'000));
  };
  EXPECT_EQ(blocks(1), 2);
  EXPECT_EQ(blocks(257), 2);
  EXPECT_EQ(blocks(258), 4);
  // As many as a context comes out of: see context_in().
  EngineConfig config;
  config.kvcache_block_size = 256;
  EXPECT_EQ(context_in(config, {1000, ""}, kAll, 1).num_tokens, 257);
}

TEST(KvCachePlan, RanksShareTheLeastAndSayWhose) {
  const KvCachePlan plan = {7, "40% of the free memory"};
  EXPECT_EQ(shared_plan(plan, 7).num_blocks, 7);
  EXPECT_EQ(shared_plan(plan, 7).reason, "40% of the free memory");
  EXPECT_EQ(shared_plan(plan, 6).num_blocks, 6);
  EXPECT_EQ(shared_plan(plan, 6).reason, "what another rank holds");
}

// The least of three terms, the third of which is the larger of two: each decides once, and one
// block beyond where it does it decides no more.
TEST(KvCachePlan, ACpuTakesTheLeastOfItsShareAllSequencesAndWhatASmallModelNeeds) {
  constexpr int64_t kMib = int64_t{1} << 20;
  const auto plan = [](int64_t free_mib, int max_num_seqs, int context, int64_t weights_mib,
                       int num_ranks = 1) {
    return plan_kv_cache(config_for(max_num_seqs),
                         {.block_bytes = kMib,
                          .block_size = 16,
                          .context = context,
                          .weight_bytes = weights_mib * kMib},
                         cpu_with(free_mib * kMib, num_ranks));
  };
  // 8 x 11 + 512 MiB
  EXPECT_EQ(plan(1503, 512, 2048, 11).num_blocks, 600);
  EXPECT_EQ(plan(1503, 512, 2048, 11).reason, "8 times the weights plus 512 MiB");
  EXPECT_EQ(plan(1499, 512, 2048, 11).num_blocks, 599);
  EXPECT_EQ(plan(1497, 512, 2048, 11).reason, "40% of the free memory");
  EXPECT_EQ(plan(1500, 5, 1920, 11).num_blocks, 600);
  EXPECT_EQ(plan(1500, 4, 2048, 11).num_blocks, 512);
  EXPECT_EQ(plan(1500, 4, 2048, 11).reason, "4 requests of that length, max_num_seqs");
  EXPECT_EQ(plan(1500, 1, 2048, 11).num_blocks, 128);
  EXPECT_EQ(plan(1500, 1, 2048, 11).reason, "1 request of that length, max_num_seqs");
  // 4 requests of 150 blocks each, or of 151
  EXPECT_EQ(plan(9999, 512, 150 * 16 + 1, 11).num_blocks, 600);
  EXPECT_EQ(plan(9999, 512, 150 * 16 + 1, 11).reason, "8 times the weights plus 512 MiB");
  EXPECT_EQ(plan(9999, 512, 150 * 16 + 2, 11).num_blocks, 604);
  EXPECT_EQ(plan(9999, 512, 150 * 16 + 2, 11).reason, "4 requests of that length");
  // Ranks share the free memory and the 512 MiB; each has weights of its own.
  EXPECT_EQ(plan(9999, 512, 16, 11, 2).num_blocks, 344);
  EXPECT_EQ(plan(1600, 512, 16, 11, 2).num_blocks, 320);
}

TEST(KvCachePlan, WhatASmallModelNeedsIsNoBoundOfADevice) {
  const KvCacheDemand demand{
      .block_bytes = 1 << 20, .block_size = 16, .context = 16, .weight_bytes = 1};
  const int64_t free = int64_t{2000} << 20;
  EXPECT_EQ(num_planned(config_for(1 << 16), demand, {false, 1, free, free}), 1800);
  EXPECT_EQ(num_planned(config_for(1 << 16), demand, {true, 1, free, free}), 512);
}

TEST(KvCachePlan, SaysWhatDecided) {
  EngineConfig config = config_for(512);
  config.num_kvcache_blocks = 3;
  EXPECT_EQ(plan_kv_cache(config, kDemand, cpu_with(100'000)).reason, "num_kvcache_blocks");
  config.kv_cache_memory = 2000;
  EXPECT_EQ(plan_kv_cache(config, kDemand, cpu_with(100'000)).reason, "kv_cache_memory");
  EXPECT_EQ(plan_kv_cache(config_for(512), kDemand, {false, 1, 100'000, 60'000}).reason,
            "what gpu_memory_utilization 0.9 leaves");
}

ModelConfig model_for(int max_position_embeddings) {
  ModelConfig model;
  model.max_position_embeddings = max_position_embeddings;
  return model;
}

TEST(Context, UnaskedItIsTheModelsOwnUpToABound) {
  const EngineConfig config;
  const auto context = [&](int own) { return context_of(config, model_for(own)).num_tokens; };
  EXPECT_EQ(context(512), 512);
  EXPECT_EQ(context(40'960), 40'960);
  EXPECT_EQ(context(65'536), 65'536);
  EXPECT_EQ(context(65'537), 65'536);
  EXPECT_EQ(context_of(config, model_for(65'536)).reason, "the model's own");
  EXPECT_EQ(context_of(config, model_for(65'537)).reason, "the most that is taken unasked");
  ModelConfig stretched = model_for(32'768);
  stretched.rope_scaling.kind = "yarn";
  stretched.rope_scaling.factor = 1.5;
  stretched.rope_scaling.original_max_position_embeddings = 32'768;
  EXPECT_EQ(context_of(config, stretched).num_tokens, 49'152);
}

TEST(Context, UnaskedALongRopeModelKeepsItsShortFactors) {
  EngineConfig config;
  ModelConfig model = model_for(131'072);
  model.rope_scaling.kind = "longrope";
  model.rope_scaling.original_max_position_embeddings = 4096;
  model.rope_scaling.divisors = {1, 1};
  model.rope_scaling.long_divisors = {2, 3};
  EXPECT_EQ(context_of(config, model).num_tokens, 4096);
  config.max_model_len = 4097;
  EXPECT_EQ(context_of(config, model).num_tokens, 4097);
}

TEST(Context, WhatIsAskedForIsTakenWhateverTheKvCacheHolds) {
  EngineConfig config;
  config.max_model_len = 100'000;
  EXPECT_EQ(context_of(config, model_for(131'072)).num_tokens, 100'000);
  EXPECT_EQ(context_of(config, model_for(131'072)).reason, "as asked for");
  EXPECT_EQ(context_in(config, context_of(config, model_for(131'072)), kAll, 3).num_tokens,
            100'000);
}

TEST(Context, MoreThanTheModelWasMadeForIsRefusedWithBothNumbers) {
  EngineConfig config;
  config.max_model_len = 512;
  EXPECT_EQ(context_of(config, model_for(512)).num_tokens, 512);
  config.max_model_len = 513;
  ModelConfig model = model_for(512);
  model.model_dir = "models/small";
  try {
    context_of(config, model);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_STREQ(
        error.what(),
        "max_model_len is 513, but models/small was made for 512 tokens, prompt and output "
        "together; ask for no more, or leave it out");
  }
}

TEST(Context, UnaskedItIsWhatOneRequestHasRoomFor) {
  EngineConfig config;
  config.kvcache_block_size = 16;
  const ContextLimit context = context_of(config, model_for(97));
  EXPECT_EQ(context_in(config, context, kAll, 6).num_tokens, 97);
  EXPECT_EQ(context_in(config, context, kAll, 6).reason, "the model's own");
  EXPECT_EQ(context_in(config, context, kAll, 5).num_tokens, 81);
  EXPECT_EQ(context_in(config, context, kAll, 5).reason,
            "what the KV cache holds of 97 tokens, the model's own");
}

TEST(KvCachePlan, ADevicesWeightsAndWorkspaceCountAgainstItsUtilization) {
  EngineConfig config = config_for(512);
  config.gpu_memory_utilization = 0.9;
  EXPECT_EQ(num_planned(config, kDemand, {false, 1, 100'000, 60'000}), 50);
  EXPECT_EQ(num_planned(config, kDemand, {false, 1, 100'000, 11'000}), 1);
  const Error error = error_of([&] { num_planned(config, kDemand, {false, 1, 100'000, 10'999}); });
  EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
  EXPECT_NE(std::string(error.what()).find("needs 1000 bytes"), std::string::npos);
  EXPECT_NE(std::string(error.what()).find("10999"), std::string::npos);
  EXPECT_NE(std::string(error.what()).find("gpu_memory_utilization 0.9"), std::string::npos);
}

TEST(KvCachePlan, LessThanOneBlockIsRefused) {
  const Error error = error_of([] { num_planned({}, kDemand, cpu_with(2499)); });
  EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
  EXPECT_NE(std::string(error.what()).find("needs 1000 bytes"), std::string::npos);
  EXPECT_NE(std::string(error.what()).find("2499"), std::string::npos);
}

TEST(KvCachePlan, TheLimitThatBitesIsNamed) {
  EngineConfig config;
  DeviceMemory memory = cpu_with(2499);
  memory.limit = " (ulimit -v)";
  const Error share = error_of([&] { num_planned(config, kDemand, memory); });
  EXPECT_NE(std::string(share.what()).find("2499 bytes free (ulimit -v) with"), std::string::npos);
  config.num_kvcache_blocks = 3;
  const Error blocks = error_of([&] { num_planned(config, kDemand, memory); });
  EXPECT_NE(std::string(blocks.what()).find("2499 are free (ulimit -v);"), std::string::npos);
  config.num_kvcache_blocks = 1;
  const Error one = error_of([&] { num_planned(config, kDemand, cpu_with(1)); });
  EXPECT_NE(std::string(one.what()).find("a KV cache of 1 block needs"), std::string::npos);
}

TEST(KvCachePlan, BytesOverrideTheShares) {
  EngineConfig config = config_for(1);
  config.kv_cache_memory = 50'999;
  EXPECT_EQ(num_planned(config, kDemand, cpu_with(51'000)), 50);
  EXPECT_EQ(num_planned(config, kDemand, cpu_with(50'000)), 50);
  EXPECT_EQ(error_of([&] { num_planned(config, kDemand, cpu_with(49'999)); }).code(),
            ErrorCode::kOutOfMemory);
  config.kv_cache_memory = 1000;
  EXPECT_EQ(num_planned(config, kDemand, cpu_with(100'000)), 1);
  config.kv_cache_memory = 999;
  EXPECT_EQ(error_of([&] { num_planned(config, kDemand, cpu_with(100'000)); }).code(),
            ErrorCode::kInvalidArgument);
}

TEST(KvCachePlan, BlocksAreTakenAsGivenWithinTheBytes) {
  EngineConfig config = config_for(1);
  config.num_kvcache_blocks = 90;
  EXPECT_EQ(num_planned(config, kDemand, cpu_with(90'000)), 90);
  const Error error = error_of([&] { num_planned(config, kDemand, cpu_with(89'999)); });
  EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
  EXPECT_NE(std::string(error.what()).find("90000 bytes"), std::string::npos);
  EXPECT_NE(std::string(error.what()).find("89999"), std::string::npos);
  config.kv_cache_memory = 20'000;
  EXPECT_EQ(num_planned(config, kDemand, cpu_with(90'000)), 20);
  config.kv_cache_memory = 200'000;
  EXPECT_EQ(num_planned(config, kDemand, cpu_with(90'000)), 90);
}

TEST(KvCachePlan, SlotsFitInThirtyTwoBits) {
  constexpr int kMost = 134'217'727;  // (2^31 - 1) / 16
  EngineConfig config;
  const KvCacheDemand tiny{.block_bytes = 1, .block_size = 16, .context = 1 << 30};
  config.num_kvcache_blocks = kMost;
  EXPECT_EQ(num_planned(config, tiny, cpu_with(int64_t{1} << 40)), kMost);
  config.num_kvcache_blocks = kMost + 1;
  EXPECT_EQ(error_of([&] { num_planned(config, tiny, cpu_with(int64_t{1} << 40)); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(num_planned({}, tiny, cpu_with(int64_t{1} << 40)), kMost);
}

}  // namespace
}  // namespace nanovllm
