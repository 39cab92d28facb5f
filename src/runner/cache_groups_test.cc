#include "runner/cache_groups.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ops/backend.h"

namespace nanovllm {
namespace {

// num_layers layers of which every nth sees everything and the others a window.
std::vector<int> every(int n, int num_layers, int window) {
  std::vector<int> windows;
  for (int i = 0; i < num_layers; ++i) windows.push_back((i + 1) % n == 0 ? 0 : window);
  return windows;
}

struct Shape {
  std::vector<int> sizes;    // layers of each group
  std::vector<int> windows;  // of each group
  bool operator==(const Shape&) const = default;
};

Shape shape_of(const std::vector<int>& windows, int context = 32'000) {
  Shape shape;
  const auto groups = group_layers(windows, context);
  shape.windows = windows_of(groups);
  std::vector<int> layers;
  for (const CacheGroup& group : groups) {
    shape.sizes.push_back(static_cast<int>(group.layers.size()));
    for (const int layer : group.layers) {
      layers.push_back(layer);
      EXPECT_EQ(group.window, windows[layer] < context ? windows[layer] : 0);
    }
    EXPECT_TRUE(std::ranges::is_sorted(group.layers));
  }
  std::ranges::sort(layers);
  for (size_t i = 0; i < windows.size(); ++i) EXPECT_EQ(layers.at(i), static_cast<int>(i));
  EXPECT_EQ(layers.size(), windows.size());
  return shape;
}

TEST(CacheGroups, LayersThatSeeAlikeAreOneGroup) {
  EXPECT_EQ(shape_of({0, 0, 0}), (Shape{{3}, {0}}));
  EXPECT_EQ(shape_of({64, 64, 64}), (Shape{{3}, {64}}));
  EXPECT_EQ(shape_of(every(2, 24, 128)), (Shape{{12, 12}, {0, 128}}));  // gpt-oss 20B
}

TEST(CacheGroups, AWindowThatSeesTheWholeContextIsNone) {
  EXPECT_EQ(shape_of(every(2, 6, 128), 128), (Shape{{6}, {0}}));
  EXPECT_EQ(shape_of(every(2, 6, 128), 129), (Shape{{3, 3}, {0, 128}}));
}

TEST(CacheGroups, LayersAreCutIntoGroupsOfTheFewest) {
  // Gemma 3 4B, 12B and 27B
  EXPECT_EQ(shape_of(every(6, 34, 1024)),
            (Shape{{5, 5, 5, 5, 5, 5, 4}, {0, 1024, 1024, 1024, 1024, 1024, 1024}}));
  EXPECT_EQ(shape_of(every(6, 48, 1024)),
            (Shape{{8, 8, 8, 8, 8, 8}, {0, 1024, 1024, 1024, 1024, 1024}}));
  EXPECT_EQ(shape_of(every(6, 62, 1024)).sizes, (std::vector<int>{10, 9, 9, 9, 9, 8, 8}));
}

TEST(CacheGroups, LayersWithoutKeysAreInNone) {
  const auto groups = group_layers(std::vector<int>{kNoKeys, 0, kNoKeys, kNoKeys, 0}, 100);
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].layers, (std::vector<int>{1, 4}));
  EXPECT_EQ(num_layers_of(groups), 2);
}

TEST(CacheGroups, AreToldByWhatTheyKeep) {
  EXPECT_EQ(describe_groups(group_layers(every(6, 34, 1024), 32'000)),
            (std::vector<std::string>{"5 layers in 1 group: all tokens are kept",
                                      "29 layers in 6 groups: the last 1024 are kept"}));
}

TEST(CacheGroups, ASizeThatLeavesLessEmptyIsTaken) {
  EXPECT_EQ(shape_of({0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9}),
            (Shape{{4, 3, 4, 4}, {0, 0, 9, 9}}));
}

TEST(CacheGroups, ThereAreNoMoreThanAStepCanCarry) {
  std::vector<int> windows(40, 9);
  windows.push_back(0);
  const Shape shape = shape_of(windows);
  EXPECT_EQ(shape.sizes, (std::vector<int>{1, 6, 6, 6, 6, 6, 5, 5}));
  EXPECT_EQ(layers_in_block(group_layers(windows, 100)), 6);
  std::vector<int> all_differ;
  for (int i = 0; i < 12; ++i) all_differ.push_back(10 + i);
  EXPECT_EQ(shape_of(all_differ).sizes, std::vector<int>(12, 1));
}

}  // namespace
}  // namespace nanovllm
