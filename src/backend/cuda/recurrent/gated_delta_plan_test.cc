// How the gated delta rule is divided on GPUs of all sizes; needs no device.
#include "backend/cuda/recurrent/gated_delta_plan.h"

#include <gtest/gtest.h>

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

TEST(CudaGatedDeltaPlan, TakesDecodesOneByOneAndPromptsBySixteen) {
  for (const Gpu& gpu : kGpus) {
    const GatedDeltaPlan decode = plan_gated_delta(heads_of(128, 128), 1, gpu.traits);
    EXPECT_EQ(decode, (GatedDeltaPlan{.rows = 1, .num_threads = 256, .shared_bytes = 57232}));
    for (const int rows : {2, 17, 8192}) {
      const GatedDeltaPlan prompt = plan_gated_delta(heads_of(128, 128), rows, gpu.traits);
      EXPECT_EQ(prompt.rows, kManyDeltaRows) << gpu.name;
      EXPECT_EQ(prompt.num_threads, 256);
    }
  }
}

TEST(CudaGatedDeltaPlan, KeepsApartWhatManyRowsWouldOverwrite) {
  const auto keeps_apart = [](int rows) {
    return plan_gated_delta(heads_of(128, 128), rows, kH100.traits).keeps_apart;
  };
  EXPECT_FALSE(keeps_apart(1));
  EXPECT_FALSE(keeps_apart(kShortDeltaRows));
  EXPECT_TRUE(keeps_apart(kShortDeltaRows + 1));
}

// What check_shapes.h takes has a plan everywhere.
TEST(CudaGatedDeltaPlan, FitsTheSharedMemoryOfEachGpu) {
  for (const Gpu& gpu : kGpus) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
      for (int key_dim = 8; key_dim <= kMaxStateKeyDim; key_dim += 8) {
        for (int value_dim = 8; value_dim <= kMaxStateValueDim; value_dim += 8) {
          for (const int rows : {1, 4096}) {
            const auto plan =
                plan_gated_delta(heads_of(key_dim, value_dim, dtype), rows, gpu.traits);
            ASSERT_LE(plan.shared_bytes + 1024, gpu.traits.block_bytes())
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
  EXPECT_EQ(plan_gated_delta(wide, 100, kH100.traits).rows, kManyDeltaRows);
  EXPECT_EQ(plan_gated_delta(wide, 100, kRtx4090.traits).rows, 1);
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
