// What the scalar reference's tests on every backend can't tell: who wins in closed groups.
#include "backend/cpu/experts/routing.h"

#include <gtest/gtest.h>

#include <array>

namespace nanovllm {
namespace {

// transformers' Glm4MoeTopkRouter masks scores by 0, which is more than an open expert of less.
TEST(Routing, AClosedExpertWinsOverAnOpenOneBelowZero) {
  std::array<float, 4> logits = {};  // s = 0.5 each
  const Routing routing = {.score = Routing::Score::kSigmoid,
                           .correction = {2, -2, 0, -1},
                           .num_groups = 2,
                           .num_active_groups = 1,
                           .num_active = 2};
  std::array<int32_t, 2> ids = {};
  std::array<float, 2> weights = {};
  route(logits.data(), 4, routing, ids.data(), weights.data());
  EXPECT_EQ(ids, (std::array<int32_t, 2>{0, 2}));
  EXPECT_EQ(weights, (std::array<float, 2>{0.5f, 0.5f}));
}

}  // namespace
}  // namespace nanovllm
