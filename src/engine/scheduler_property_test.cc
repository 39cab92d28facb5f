// Random arrivals, ends and lengths in too little memory: what holds for every step of a scheduler,
// whichever its policy is.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "engine/scheduler.h"

namespace nanovllm {
namespace {

constexpr int kBlockSize = 4;
constexpr int kMaxTokens = 40;  // of a sequence: fits into the blocks alone
const EngineLimits kLimits{.max_num_batched_tokens = 16, .max_num_seqs = 5};

class SchedulerProperty
    : public ::testing::TestWithParam<std::tuple<SchedulingPolicy, std::vector<int>>> {
 protected:
  static bool goes_before(Sequence* a, Sequence* b) { return std::get<0>(GetParam())(a, b); }
  int pick(int n) { return static_cast<int>(rng_() % static_cast<unsigned>(n)); }

  void add(int priority) {
    const int length = 1 + pick(20);
    const int longest = length + 1 + pick(kMaxTokens - length);
    auto sequence =
        std::make_unique<Sequence>(next_id_++, 0, std::vector<int32_t>(length, 1), longest);
    sequence->priority = priority;
    scheduler_.add(*sequence);
    live_.push_back(std::move(sequence));
  }

  // One step, which is computed at once; what it chose must be right.
  void step() {
    const std::vector<Sequence*> waited(scheduler_.waiting().begin(), scheduler_.waiting().end());
    const auto scheduled = scheduler_.schedule();
    std::map<Sequence*, int> given;
    int budget = kLimits.max_num_batched_tokens;
    for (const auto& [sequence, num_new_tokens] : scheduled) {
      given[sequence] += num_new_tokens;
      budget -= num_new_tokens;
    }
    ASSERT_GE(budget, 0);
    check_order(waited);
    check_work_is_conserved(given, budget, waited);
    scheduler_.advance(scheduled);
    for (const auto& [sequence, num_new_tokens] : scheduled) {
      blocks_.register_computed(*sequence, sequence->num_computed_tokens);
      if (sequence->num_pending_tokens == 0) continue;
      --sequence->num_pending_tokens;
      sequence->token_ids.push_back(1);
      if (sequence->num_tokens() == sequence->max_num_tokens) scheduler_.finish(*sequence);
    }
    std::erase_if(live_, [](const auto& s) { return s->status == SequenceStatus::kFinished; });
    std::vector<const Sequence*> holders;
    for (const auto& sequence : live_) holders.push_back(sequence.get());
    ASSERT_EQ(blocks_.check_integrity(holders), "");
  }

  // Who was let in goes before all who still wait, and who was sent out behind all who run.
  void check_order(const std::vector<Sequence*>& waited) {
    const auto& waiting = scheduler_.waiting();
    const auto running = scheduler_.running();
    ASSERT_TRUE(std::ranges::is_sorted(running, goes_before));
    for (Sequence* sequence : waited) {
      if (sequence->status == SequenceStatus::kRunning && !waiting.empty()) {
        ASSERT_TRUE(goes_before(sequence, *waiting.begin()));
      }
    }
    for (Sequence* sequence : scheduler_.preempted()) {
      ASSERT_TRUE(running.empty() || goes_before(running.back(), sequence));
    }
    num_preemptions_ += std::ssize(scheduler_.preempted());
  }

  // Nobody waits while there are tokens, seats and blocks; those that ran before get tokens first,
  // in order. Who gets fewer because blocks are few leaves none.
  void check_work_is_conserved(const std::map<Sequence*, int>& given, int budget,
                               const std::vector<Sequence*>& waited) {
    bool is_short = false;
    for (Sequence* sequence : scheduler_.running()) {
      const auto found = given.find(sequence);
      ASSERT_TRUE(found != given.end() || budget == 0);
      if (std::ranges::find(waited, sequence) != waited.end()) continue;
      ASSERT_FALSE(is_short && found != given.end()) << "one behind it was served first";
      const bool has_part =
          found != given.end() && found->second < sequence->num_uncomputed_tokens();
      const bool lacks_blocks =
          blocks_.num_free_blocks() < std::ssize(windows_) || !scheduler_.preempted().empty();
      is_short = found == given.end() || (has_part && !lacks_blocks);
    }
    const auto& waiting = scheduler_.waiting();
    if (waiting.empty() || !scheduler_.preempted().empty()) return;
    const bool has_seat = std::ssize(scheduler_.running()) < kLimits.max_num_seqs;
    const bool fits =
        blocks_.blocks_for((*waiting.begin())->num_tokens()) <= blocks_.num_free_blocks();
    ASSERT_FALSE(budget > 0 && has_seat && fits);
  }

  std::mt19937 rng_{1};
  const std::vector<int> windows_ = std::get<1>(GetParam());
  // Those of the longest sequence and a few more.
  const int num_blocks_ = static_cast<int>(kv_blocks_for(kMaxTokens, windows_, kBlockSize)) + 2;
  // Sequences that keep only a window take few blocks more as they grow.
  const int least_preemptions_ = std::ranges::count(windows_, 0) > 0 ? 100 : 5;
  BlockManager blocks_{num_blocks_, kBlockSize, windows_};
  Scheduler scheduler_{kLimits, blocks_, std::get<0>(GetParam())};
  std::vector<std::unique_ptr<Sequence>> live_;
  uint64_t next_id_ = 0;
  int64_t num_preemptions_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Policies, SchedulerProperty,
                         ::testing::Combine(::testing::Values(&by_arrival, &by_priority),
                                            ::testing::Values(std::vector{0}, std::vector{0, 6, 6},
                                                              std::vector{3}, std::vector{9, 1})));

TEST_P(SchedulerProperty, KeepsTheOrderAndLeavesNothingIdle) {
  for (int i = 0; i < 5000 && !HasFatalFailure(); ++i) {
    if (live_.size() < 20 && pick(3) == 0) add(pick(4) - 1);
    if (pick(50) == 0 && !live_.empty()) {
      scheduler_.finish(*live_[pick(static_cast<int>(live_.size()))]);
    }
    step();
  }
  for (int i = 0; i < 2000 && !live_.empty() && !HasFatalFailure(); ++i) step();
  EXPECT_TRUE(live_.empty());
  EXPECT_EQ(blocks_.num_free_blocks(), num_blocks_);
  EXPECT_GT(num_preemptions_, least_preemptions_);
}

// With ever more equals behind it, the first of them is served in each step, so that each ends.
TEST_P(SchedulerProperty, StarvesNoneAmongEquals) {
  for (int i = 0; i < 5000 && !HasFatalFailure(); ++i) {
    while (live_.size() < 20) add(7);
    Sequence* first = live_.front().get();
    const int num_tokens = first->num_computed_tokens;
    const bool runs = first->status == SequenceStatus::kRunning;
    const uint64_t id = first->request_id;
    step();
    if (live_.front()->request_id == id) {
      ASSERT_TRUE(first->num_computed_tokens > num_tokens || !runs);
      ASSERT_EQ(first->status, SequenceStatus::kRunning);
    }
  }
  EXPECT_GT(next_id_, 300u);
  EXPECT_GT(num_preemptions_, least_preemptions_);
}

}  // namespace
}  // namespace nanovllm
