// Which masks the table keeps; where it lies does not matter, so that this needs no GPU.
#include "backend/cuda/sampling/mask_table.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "backend/cpu/cpu_backend.h"

namespace nanovllm::cuda {
namespace {

constexpr auto kPlaces = static_cast<uint64_t>(MaskTable::kMinPlaces);

class CudaMasksPlan : public ::testing::Test {
 protected:
  // Whether each of the masks of a step had to be written. No two of them are in one place.
  std::vector<bool> step(const std::vector<uint64_t>& keys, size_t mask_words = 4) {
    EXPECT_NE(table_.begin_step(keys.size(), mask_words), nullptr);
    std::vector<bool> news;
    std::set<int32_t> written;
    for (const uint64_t key : keys) {
      const MaskTable::Place place = table_.place(key);
      news.push_back(place.is_new);
      if (place.is_new) {
        EXPECT_TRUE(written.insert(place.index).second);
      }
    }
    table_.end_step();
    return news;
  }
  bool is_new(uint64_t key) { return step({key})[0]; }
  void fill(uint64_t first_key, uint64_t count) {
    for (uint64_t key = first_key; key < first_key + count; ++key) EXPECT_TRUE(is_new(key)) << key;
  }

  CpuBackend cpu_{CpuOptions{.num_threads = 1}};
  MaskTable table_{cpu_};
};

TEST_F(CudaMasksPlan, AKeyIsWrittenOnce) {
  EXPECT_EQ(step({5, 6, 5}), (std::vector<bool>{true, true, false}));
  EXPECT_EQ(step({7, 6, 5}), (std::vector<bool>{true, false, false}));
}

TEST_F(CudaMasksPlan, ThePlaceOfAKeyStays) {
  table_.begin_step(1, 4);
  const int32_t index = table_.place(5).index;
  table_.end_step();
  fill(100, kPlaces - 1);
  table_.begin_step(1, 4);
  EXPECT_EQ(table_.place(5).index, index);
}

TEST_F(CudaMasksPlan, TheLeastRecentlyUsedGoesWhereTheTableIsFull) {
  fill(1, kPlaces);
  EXPECT_FALSE(is_new(1));
  EXPECT_TRUE(is_new(kPlaces + 1));
  EXPECT_FALSE(is_new(1));
  EXPECT_FALSE(is_new(3));
  EXPECT_TRUE(is_new(2));  // and now 4 has gone
  EXPECT_FALSE(is_new(3));
  EXPECT_TRUE(is_new(4));
}

TEST_F(CudaMasksPlan, MasksWithoutAKeyAreAlwaysWrittenAndTakeOnePlaceEach) {
  fill(1, kPlaces - 3);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(step({0, 1, 0, 0}), (std::vector<bool>{true, false, true, true}));
  }
  for (uint64_t key = 1; key <= kPlaces - 3; ++key) EXPECT_FALSE(is_new(key)) << key;
}

TEST_F(CudaMasksPlan, AStepMayTakeTheWholeTableAndMore) {
  std::vector<uint64_t> keys;
  for (uint64_t key = 1; key <= kPlaces; ++key) keys.push_back(key % 3 == 0 ? 0 : key);
  fill(1, 5);
  std::vector<bool> news = step(keys);
  for (uint64_t i = 0; i < kPlaces; ++i) EXPECT_EQ(news[i], i >= 5 || keys[i] == 0) << i;
  keys.push_back(kPlaces + 1);  // one more than there are places: all are forgotten
  EXPECT_EQ(step(keys), std::vector<bool>(kPlaces + 1, true));
  keys.push_back(kPlaces + 2);
  news = step(keys);
  for (uint64_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(news[i], i == kPlaces + 1 || keys[i] == 0) << i;
  }
}

TEST_F(CudaMasksPlan, MasksOfAnotherSizeForgetThose) {
  EXPECT_EQ(step({1}, 4), (std::vector<bool>{true}));
  EXPECT_EQ(step({1}, 8), (std::vector<bool>{true}));
  EXPECT_EQ(step({1}, 8), (std::vector<bool>{false}));
  EXPECT_EQ(step({1}, 4), (std::vector<bool>{true}));
}

}  // namespace
}  // namespace nanovllm::cuda
