#include "server/fleet/prefix_router.h"

#include <gtest/gtest.h>

#include <numeric>

namespace nanovllm::server {
namespace {

std::vector<int32_t> counting(int length, int32_t first) {
  std::vector<int32_t> ids(static_cast<size_t>(length));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

int route(PrefixRouter& router, const std::vector<int32_t>& prompt, std::vector<int> loads) {
  return router.route(prompt, {}, loads);
}

TEST(PrefixRouter, TakesTheLeastLoadedOfThoseThatAreOpen) {
  PrefixRouter router(4);
  EXPECT_EQ(route(router, {1}, {3, 2, 4}), 1);
  EXPECT_EQ(route(router, {1}, {3, -1, 4}), 0);
  EXPECT_EQ(route(router, {1}, {-1, -1}), -1);
  EXPECT_EQ(route(router, {1}, {-1}), -1);
  EXPECT_EQ(route(router, {1}, {7}), 0);
}

TEST(PrefixRouter, TakesTheEngineWithTheLongestBeginning) {
  PrefixRouter router(4);
  EXPECT_EQ(route(router, counting(8, 1), {1, 0, 1}), 1);
  auto longer = counting(12, 1);
  EXPECT_EQ(route(router, longer, {5, 5, 0}), 1);
  longer[7] = 99;  // the same first block only
  EXPECT_EQ(route(router, longer, {1, 5, 0}), 1);
  longer[3] = 99;  // nothing in common, though the second block is the same
  EXPECT_EQ(route(router, longer, {1, 5, 0}), 2);
  EXPECT_EQ(route(router, counting(3, 1), {1, 5, 0}), 2);  // no whole block
}

TEST(PrefixRouter, KeepsWhatHasAnotherSaltApart) {
  PrefixRouter router(4);
  const auto prompt = counting(8, 1);
  EXPECT_EQ(router.route(prompt, "a", std::vector{1, 0, 1}), 1);
  EXPECT_EQ(router.route(prompt, "a", std::vector{0, 5, 1}), 1);
  EXPECT_EQ(router.route(prompt, "b", std::vector{1, 5, 0}), 2);
  EXPECT_EQ(router.route(prompt, {}, std::vector{0, 5, 1}), 0);
}

TEST(PrefixRouter, DoesNotLetABeginningThatAllShareFillOneEngine) {
  PrefixRouter router(4);
  EXPECT_EQ(route(router, counting(8, 1), {0, 1}), 0);
  EXPECT_EQ(route(router, counting(8, 1), {10, 1}), 0);
  EXPECT_EQ(route(router, counting(8, 1), {11, 1}), 1);
  EXPECT_EQ(route(router, counting(8, 1), {3, 2}), 1);  // both have it now
}

TEST(PrefixRouter, ForgetsWhatAnEngineLost) {
  PrefixRouter router(4);
  EXPECT_EQ(route(router, counting(8, 1), {0, 1}), 0);
  router.forget(1);
  EXPECT_EQ(route(router, counting(8, 1), {1, 0}), 0);
  router.forget(0);
  EXPECT_EQ(route(router, counting(8, 1), {1, 0}), 1);
}

// What is used is kept, what is not goes in the end.
TEST(PrefixRouter, RemembersNoMoreThanItMay) {
  PrefixRouter router(4);
  EXPECT_EQ(route(router, counting(4, 1), {0, 1}), 0);
  EXPECT_EQ(route(router, counting(4, 2), {0, 1}), 0);
  for (int i = 0; i < 140'000; ++i) {
    route(router, counting(4, 1000 + i), {0, 1});
    if (i % 1000 == 0) {
      ASSERT_EQ(route(router, counting(4, 1), {1, 0}), 0);
    }
  }
  EXPECT_EQ(route(router, counting(4, 2), {1, 0}), 1);
}

}  // namespace
}  // namespace nanovllm::server
