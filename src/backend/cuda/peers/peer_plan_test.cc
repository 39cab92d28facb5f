// How ranks add up what they have; needs no device.
#include "backend/cuda/peers/peer_plan.h"

#include <gtest/gtest.h>

namespace nanovllm::cuda {
namespace {

TEST(CudaPeerPlan, SmallSumsGoToEverybodyAtOnce) {
  EXPECT_EQ(plan_sum(1 << 19, 1 << 19), SumPath::kLines);
  EXPECT_EQ(plan_sum((1 << 19) + 1, 1 << 19), SumPath::kExchange);
}

TEST(CudaPeerPlan, TheNormGoesAlongWhereARowFits) {
  const auto path = [](int64_t rows, int hidden, bool deterministic = false) {
    return plan_sum_and_norm(DType::kBFloat16, rows, hidden, 1 << 19, deterministic);
  };
  EXPECT_EQ(path(64, 4096), SumPath::kLinesAndNorm);
  EXPECT_EQ(path(65, 4096), SumPath::kExchange);
  EXPECT_EQ(path(1, 8192), SumPath::kLinesAndNorm);
  EXPECT_EQ(path(1, 8200), SumPath::kLines);  // 16 KiB of lines at once
  EXPECT_EQ(path(1, 1028), SumPath::kLines);  // no whole vectors of 16 bytes
  EXPECT_EQ(path(1, 4096, true), SumPath::kLines);
  EXPECT_EQ(plan_sum_and_norm(DType::kFloat32, 1, 4096, 1 << 19, false), SumPath::kLinesAndNorm);
  EXPECT_EQ(plan_sum_and_norm(DType::kFloat32, 1, 4100, 1 << 19, false), SumPath::kLines);
}

}  // namespace
}  // namespace nanovllm::cuda
