// How the gated delta rule is divided on GPUs of all sizes; needs no device.
#include "backend/cuda/recurrent/gated_delta_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cuda/device/device_traits_testing.h"

namespace nanovllm::cuda {
namespace {

StateSpec heads_of(int key_dim, int value_dim, DType dtype = DType::kBFloat16) {
  return {.num_key_heads = 16,
          .num_value_heads = 32,
          .key_dim = key_dim,
          .value_dim = value_dim,
          .conv_width = 4,
          .dtype = dtype};
}

TEST(CudaGatedDeltaPlan, TakesDecodesOneByOneAndOthersBySixteen) {
  for (const Gpu& gpu : kGpus) {
    const GatedDeltaPlan decode = plan_gated_delta(heads_of(128, 128), 1, 1, gpu.traits);
    EXPECT_EQ(decode, (GatedDeltaPlan{.rows = 1, .num_threads = 256, .shared_bytes = 57232}));
    for (const int rows : {2, 17, 8192}) {
      const GatedDeltaPlan prompt = plan_gated_delta(heads_of(128, 128), 1, rows, gpu.traits);
      EXPECT_EQ(prompt.rows, kManyDeltaRows) << gpu.name;
    }
  }
}

TEST(CudaGatedDeltaPlan, TakesLongSequencesChunkByChunkWhereThereIsRoom) {
  const auto plan = [](int rows, const Gpu& gpu, DType dtype = DType::kBFloat16) {
    return plan_gated_delta(heads_of(128, 128, dtype), 1, rows, gpu.traits);
  };
  EXPECT_EQ(plan(kShortDeltaRows, kH100).chunk_bytes, 0U);
  EXPECT_GT(plan(kShortDeltaRows + 1, kH100).chunk_bytes, 0U);
  EXPECT_EQ(plan(4096, kH100, DType::kFloat32).chunk_bytes, 0U);
  EXPECT_EQ(plan(4096, kRtx4090).chunk_bytes, 0U);
}

TEST(CudaGatedDeltaPlan, DividesFewLongSequencesFurther) {
  const auto values = [](int num_seqs, int num_heads) {
    StateSpec spec = heads_of(128, 128);
    spec.num_value_heads = num_heads;
    return plan_gated_delta(spec, num_seqs, 4096, kH100.traits).chunk_values;
  };
  EXPECT_EQ(values(1, 32), 32);  // 128 blocks for 132 multiprocessors
  EXPECT_EQ(values(1, 34), 64);
  EXPECT_EQ(values(2, 16), 32);
  EXPECT_EQ(values(3, 16), 64);
}

TEST(CudaGatedDeltaPlan, FinishesWhereThereMayBeLongSequences) {
  for (const Gpu& gpu : kGpus) {
    const auto finishes = [&](int rows) {
      return plan_gated_delta(heads_of(128, 128), 1, rows, gpu.traits).finishes;
    };
    EXPECT_FALSE(finishes(1)) << gpu.name;
    EXPECT_FALSE(finishes(kShortDeltaRows)) << gpu.name;
    EXPECT_TRUE(finishes(kShortDeltaRows + 1)) << gpu.name;
  }
}

// What check_shapes.h takes has a plan everywhere.
TEST(CudaGatedDeltaPlan, FitsTheSharedMemoryOfEachGpu) {
  for (const Gpu& gpu : kGpus) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
      for (int key_dim = 8; key_dim <= kMaxStateKeyDim; key_dim += 8) {
        for (int value_dim = 8; value_dim <= kMaxStateValueDim; value_dim += 8) {
          for (const int rows : {1, 4096}) {
            const auto plan =
                plan_gated_delta(heads_of(key_dim, value_dim, dtype), 1, rows, gpu.traits);
            ASSERT_LE(std::max(plan.shared_bytes, plan.chunk_bytes) + 1024,
                      gpu.traits.block_bytes())
                << gpu.name << ", " << key_dim << " x " << value_dim;
            ASSERT_EQ(plan.num_threads % 32, 0);
            ASSERT_GE(plan.num_threads, 2 * value_dim);
          }
        }
      }
    }
  }
}

TEST(CudaGatedDeltaPlan, ManyRowsAtOnceAreGivenUpWhereTheyDoNotFit) {
  const StateSpec wide = heads_of(128, 192, DType::kFloat32);
  EXPECT_EQ(plan_gated_delta(wide, 1, 100, kH100.traits).rows, kManyDeltaRows);
  EXPECT_EQ(plan_gated_delta(wide, 1, 100, kRtx4090.traits).rows, 1);
}

TEST(CudaDeltaLayout, CountsWhatASequenceKeeps) {
  const DeltaLayout layout(heads_of(128, 128));
  constexpr int64_t kChannels = (2 * 16 + 32) * 128;
  EXPECT_EQ(layout.slot, 32 * 128 * 128 * 4 + 3 * kChannels * 2);
  EXPECT_EQ(layout.log, 16 * 80 * 128 * 2 + 32 * 64 * (128 * 4 + 8) + 19 * kChannels * 2);
  const DeltaLayout padded(heads_of(24, 40));
  EXPECT_EQ(padded.key_dim, 32);
  EXPECT_EQ(padded.value_dim, 48);
  for (const int64_t offset :
       {padded.conv_rows, padded.slot, padded.values, padded.gates, padded.ring, padded.log}) {
    EXPECT_EQ(offset % 256, 0) << "copies of 16 bytes begin there";
  }
}

}  // namespace
}  // namespace nanovllm::cuda
