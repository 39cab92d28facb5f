#include "engine/kept_states.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <vector>

namespace nanovllm {
namespace {

constexpr int kNone = KeptStates::kNone;

std::vector<int> held_once(int num_slots) { return std::vector<int>(num_slots, 1); }

TEST(KeptStates, TheOneThatSavesLeastGoesFirst) {
  KeptStates kept(3, 1);
  EXPECT_EQ(kept.first_to_go(held_once(3), true), kNone);
  kept.keep(0, 10, 500);
  kept.keep(1, 11, 100);
  kept.keep(2, 12, 300);
  EXPECT_EQ(kept.first_to_go(held_once(3), true), 1);
  EXPECT_EQ(kept.first_to_go(std::vector{1, 2, 1}, true), 2);  // somebody goes on from the other
  kept.evict(1);
  EXPECT_EQ(kept.node(1), kNone);
  EXPECT_EQ(kept.first_to_go(held_once(3), true), 2);
}

TEST(KeptStates, OneThatNobodyUsesGoesAfterAWhile) {
  KeptStates kept(2, 1);
  kept.keep(0, 10, 8192);
  int num_outlived = 0;
  for (; num_outlived < 1000; ++num_outlived) {
    kept.keep(1, 11, 256);
    const int first = kept.first_to_go(held_once(2), true);
    if (first == 0) break;
    kept.evict(first);
  }
  EXPECT_EQ(num_outlived, (8192 + KeptStates::kWorthOfUse) / (256 + KeptStates::kWorthOfUse));
}

TEST(KeptStates, OneThatIsUsedIsWorthAsMuchAsANewOne) {
  KeptStates kept(3, 1);
  kept.keep(0, 10, 100);
  kept.keep(1, 11, 90);
  kept.evict(1);
  kept.keep(1, 11, 20);  // the clock has gone on
  kept.keep(2, 12, 30);
  EXPECT_EQ(kept.first_to_go(held_once(3), true), 0);
  kept.use(0, 100);
  EXPECT_EQ(kept.first_to_go(held_once(3), true), 1);
}

TEST(KeptStates, OneThatASequenceJustPassesGoesFirstForANewSequenceUntilItIsForOthers) {
  KeptStates kept(3, 2);
  kept.keep(0, 10, 100);
  kept.keep(1, 11, 5000, 0);
  kept.keep(2, 12, 6000, 1);
  EXPECT_EQ(kept.slot_passed_by(0), 1);
  EXPECT_EQ(kept.first_to_go(held_once(3), true), 1);
  EXPECT_EQ(kept.first_to_go(held_once(3), false), 0);
  kept.settle(0);
  EXPECT_EQ(kept.slot_passed_by(0), kNone);
  EXPECT_FALSE(kept.is_passed(1));
  EXPECT_EQ(kept.first_to_go(held_once(3), true), 2);
  kept.use(2, 7000);
  EXPECT_EQ(kept.slot_passed_by(1), kNone);
  EXPECT_EQ(kept.first_to_go(held_once(3), true), 0);
}

// Against lists that are searched.
TEST(KeptStatesProperty, DoesAsASimpleModelDoes) {
  constexpr int kNumSlots = 12, kNumOwners = 4;
  struct Model {
    int node, owner, saved;
    int64_t value;
  };
  std::mt19937 rng(5);
  const auto pick = [&](int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); };
  KeptStates kept(kNumSlots, kNumOwners);
  std::map<int, Model> model;  // by slot
  int64_t clock = 0;
  int num_evicted = 0;
  const auto owned = [&](int owner) {
    return std::ranges::find_if(model, [&](const auto& m) { return m.second.owner == owner; });
  };
  for (int round = 0; round < 20000; ++round) {
    const int slot = pick(kNumSlots), saved = 1 + pick(1000), owner = pick(2 * kNumOwners);
    const auto found = model.find(slot);
    if (found == model.end()) {
      const bool passes = owner < kNumOwners && owned(owner) == model.end();
      kept.keep(slot, round, saved, passes ? owner : kNone);
      model[slot] = {round, passes ? owner : kNone, saved, clock + KeptStates::kWorthOfUse + saved};
    } else if (pick(3) == 0) {
      kept.use(slot, saved);
      found->second = {found->second.node, kNone, saved, clock + KeptStates::kWorthOfUse + saved};
    } else if (pick(4) == 0) {
      kept.remove(slot);
      model.erase(found);
    }
    if (pick(8) == 0 && owner < kNumOwners) {
      kept.settle(owner);
      if (const auto passed = owned(owner); passed != model.end()) {
        passed->second.owner = kNone;
        passed->second.value = clock + KeptStates::kWorthOfUse + passed->second.saved;
      }
    }
    std::vector<int> holders(kNumSlots);
    for (int& count : holders) count = 1 + pick(2);
    const bool for_new = pick(2) == 0;
    const auto rank = [&](const Model& m) {
      return std::tuple(!for_new || m.owner == kNone, m.value);
    };
    auto first = model.end();
    for (auto one = model.begin(); one != model.end(); ++one) {
      if (holders[one->first] > 1) continue;
      if (first == model.end() || rank(one->second) < rank(first->second)) first = one;
    }
    ASSERT_EQ(kept.first_to_go(holders, for_new), first == model.end() ? kNone : first->first);
    if (first != model.end() && pick(3) == 0) {
      ++num_evicted;
      kept.evict(first->first);
      if (first->second.owner == kNone) clock = std::max(clock, first->second.value);
      model.erase(first);
    }
    ASSERT_EQ(kept.num_kept(), std::ssize(model));
    for (int i = 0; i < kNumSlots; ++i) {
      const auto one = model.find(i);
      ASSERT_EQ(kept.node(i), one == model.end() ? kNone : one->second.node);
      ASSERT_EQ(one != model.end() && kept.is_passed(i),
                one != model.end() && one->second.owner != kNone);
    }
  }
  EXPECT_GT(num_evicted, 1000);
}

}  // namespace
}  // namespace nanovllm
