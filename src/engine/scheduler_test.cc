#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <numeric>
#include <vector>

namespace nanovllm {
namespace {

// A scheduler whose steps "run" at once: every sequence samples token 1000 + its length.
struct World {
  World(const EngineLimits& limits, int num_blocks, int block_size,
        SchedulingPolicy policy = by_arrival)
      : blocks(num_blocks, block_size), scheduler(limits, blocks, policy) {}

  Sequence& add(int prompt_length, int max_num_tokens = 1 << 20, bool cached = false,
                int priority = 0) {
    const auto id = static_cast<int32_t>(sequences.size());
    std::vector<int32_t> prompt(prompt_length);
    std::iota(prompt.begin(), prompt.end(), cached ? 0 : id * 10000);
    sequences.push_back(std::make_unique<Sequence>(id, 0, std::move(prompt), max_num_tokens));
    sequences.back()->num_cacheable_tokens = 1 << 20;
    sequences.back()->priority = priority;
    scheduler.add(*sequences.back());
    return *sequences.back();
  }

  // {request id, new tokens} of the next step, which is then completed.
  std::vector<std::pair<int, int>> step() {
    std::vector<std::pair<int, int>> result;
    const auto scheduled = scheduler.schedule();
    scheduler.advance(scheduled);
    for (const auto& [sequence, num_new] : scheduled) {
      result.emplace_back(static_cast<int>(sequence->request_id), num_new);
      blocks.register_computed(*sequence, sequence->num_computed_tokens);
      if (sequence->num_pending_tokens > 0) {
        sequence->token_ids.push_back(1000 + sequence->num_tokens());
        --sequence->num_pending_tokens;
        if (sequence->num_tokens() == sequence->max_num_tokens) scheduler.finish(*sequence);
      }
    }
    std::vector<const Sequence*> holders;
    for (const auto& sequence : sequences) holders.push_back(sequence.get());
    EXPECT_EQ(blocks.check_integrity(holders), "");
    return result;
  }

  BlockManager blocks;
  Scheduler scheduler;
  std::vector<std::unique_ptr<Sequence>> sequences;
};

using Step = std::vector<std::pair<int, int>>;

TEST(Scheduler, MixesDecodesAndPromptsInOneStep) {
  World world({.max_num_batched_tokens = 100, .max_num_seqs = 8}, 64, 4);
  world.add(10);
  EXPECT_EQ(world.step(), (Step{{0, 10}}));
  world.add(20);
  EXPECT_EQ(world.step(), (Step{{0, 1}, {1, 20}}));
  EXPECT_EQ(world.step(), (Step{{0, 1}, {1, 1}}));
}

TEST(Scheduler, SplitsLongPromptsIntoChunksOfTheBudget) {
  World world({.max_num_batched_tokens = 8, .max_num_seqs = 8}, 64, 4);
  world.add(3);
  world.add(12);
  EXPECT_EQ(world.step(), (Step{{0, 3}, {1, 5}}));
  EXPECT_EQ(world.step(), (Step{{0, 1}, {1, 7}}));
  EXPECT_EQ(world.step(), (Step{{0, 1}, {1, 1}}));
}

TEST(Scheduler, PutsSequencesWithOneNewTokenFirst) {
  World world({.max_num_batched_tokens = 10, .max_num_seqs = 8}, 64, 4);
  world.add(12);
  world.add(4);
  EXPECT_EQ(world.step(), (Step{{0, 10}}));
  EXPECT_EQ(world.step(), (Step{{0, 2}, {1, 4}}));
  world.add(30);
  world.add(1);
  EXPECT_EQ(world.step(), (Step{{0, 1}, {1, 1}, {2, 8}}));
  EXPECT_EQ(world.step(), (Step{{0, 1}, {1, 1}, {2, 8}}));
  EXPECT_EQ(world.step(), (Step{{0, 1}, {1, 1}, {2, 8}}));
  EXPECT_EQ(world.step(), (Step{{0, 1}, {1, 1}, {3, 1}, {2, 6}}));
}

TEST(Scheduler, RunsNoMoreSequencesThanAllowed) {
  World world({.max_num_batched_tokens = 100, .max_num_seqs = 2}, 64, 4);
  for (int i = 0; i < 4; ++i) world.add(3, 5);
  EXPECT_EQ(world.step(), (Step{{0, 3}, {1, 3}}));
  EXPECT_EQ(world.step(), (Step{{0, 1}, {1, 1}}));
  EXPECT_EQ(world.step(), (Step{{2, 3}, {3, 3}}));
}

TEST(Scheduler, ServesInOrderOfArrivalEvenWhenALaterOneWouldFit) {
  World world({.max_num_batched_tokens = 100, .max_num_seqs = 8}, 4, 4);
  world.add(8, 9 + 3);
  world.add(12, 13);
  world.add(4, 5);
  EXPECT_EQ(world.step(), (Step{{0, 8}}));  // 1 does not fit beside 0, and 2 waits behind it
  EXPECT_EQ(world.step(), (Step{{0, 1}}));
}

TEST(Scheduler, PreemptsTheLatestAndRecomputesItFirst) {
  World world({.max_num_batched_tokens = 100, .max_num_seqs = 8}, 4, 4);
  Sequence& first = world.add(8, 13);
  Sequence& second = world.add(7, 10);
  world.add(4, 5);
  EXPECT_EQ(world.step(), (Step{{0, 8}, {1, 7}}));
  EXPECT_EQ(world.step(), (Step{{0, 1}}));  // 0 takes a third block from 1; nobody is let in
  EXPECT_EQ(second.num_preemptions, 1);
  EXPECT_EQ(world.scheduler.preempted().size(), 1u);
  EXPECT_EQ(second.status, SequenceStatus::kWaiting);
  EXPECT_EQ(*world.scheduler.waiting().begin(), &second);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(world.step(), (Step{{0, 1}}));
  EXPECT_EQ(first.status, SequenceStatus::kFinished);
  // 1 has its first block cached still; what it sampled before it was preempted is kept.
  EXPECT_EQ(world.step(), (Step{{1, 4}, {2, 4}}));
  EXPECT_EQ(second.num_tokens(), 9);
}

TEST(Scheduler, NobodyIsLetInWhileOthersAreSentOut) {
  World world({.max_num_batched_tokens = 100, .max_num_seqs = 8}, 4, 4);
  world.add(8, 13);
  Sequence& second = world.add(7, 10);
  world.step();
  Sequence sibling(0, 1, {1, 2, 3}, 4);  // older than the second, and would fit in its place
  world.scheduler.add(sibling);
  EXPECT_EQ(world.step(), (Step{{0, 1}}));
  EXPECT_EQ(second.status, SequenceStatus::kWaiting);
  EXPECT_EQ(*world.scheduler.waiting().begin(), &sibling);
  world.scheduler.finish(sibling);
}

TEST(Scheduler, ASequenceAloneGetsTheWholeCache) {
  World world({.max_num_batched_tokens = 5, .max_num_seqs = 8}, 3, 4);
  Sequence& only = world.add(6, 13);  // 12 tokens are computed, 3 blocks
  int steps = 0;
  while (only.status != SequenceStatus::kFinished && steps < 20) {
    world.step();
    ++steps;
  }
  EXPECT_EQ(steps, 2 + 6);
  EXPECT_EQ(only.num_preemptions, 0);
}

TEST(Scheduler, SkipsWhatThePrefixCacheHolds) {
  World world({.max_num_batched_tokens = 100, .max_num_seqs = 8}, 16, 4);
  world.add(10, 1 << 20, true);
  world.step();
  world.add(12, 1 << 20, true);
  EXPECT_EQ(world.step(), (Step{{0, 1}, {1, 4}}));
  EXPECT_EQ(world.sequences[1]->num_cached_tokens, 8);
}

TEST(Scheduler, TwoThatBeginAlikeComputeTheirBeginningOnce) {
  World world({.max_num_batched_tokens = 100, .max_num_seqs = 8}, 16, 4);
  world.add(10, 1 << 20, true);
  world.add(12, 1 << 20, true);
  world.add(5);
  EXPECT_EQ(world.step(), (Step{{0, 10}, {2, 5}}));  // who is behind 1 passes
  EXPECT_EQ(world.step(), (Step{{0, 1}, {2, 1}, {1, 4}}));
  world.add(20, 1 << 20, true);
  EXPECT_EQ(world.step(), (Step{{0, 1}, {1, 1}, {2, 1}, {3, 8}}));  // nobody computes the rest
}

TEST(Scheduler, WhoWaitsForATextHasASeatAndBlocks) {
  World seats({.max_num_batched_tokens = 100, .max_num_seqs = 2}, 64, 4);
  World blocks({.max_num_batched_tokens = 100, .max_num_seqs = 8}, 9, 4);
  for (World* world : {&seats, &blocks}) {
    world->add(10, 1 << 20, true);
    world->add(12, 1 << 20, true);
    world->add(16, 17);
    EXPECT_EQ(world->step(), (Step{{0, 10}}));
  }
  EXPECT_EQ(seats.step(), (Step{{0, 1}, {1, 4}}));
  EXPECT_EQ(blocks.step(), (Step{{0, 1}, {1, 4}, {2, 16}}));  // as the two share some
}

TEST(Scheduler, WhoeverIsWaitedForMayEnd) {
  World world({.max_num_batched_tokens = 10, .max_num_seqs = 8}, 64, 4);
  Sequence& first = world.add(30, 31, true);
  world.add(30, 31, true);
  world.add(30, 31, true);
  EXPECT_EQ(world.step(), (Step{{0, 10}}));
  world.scheduler.finish(first);
  EXPECT_EQ(world.step(), (Step{{1, 10}}));  // it has 8 from the first one
  EXPECT_EQ(world.step(), (Step{{1, 10}}));
  EXPECT_EQ(world.step(), (Step{{1, 2}, {2, 2}}));
}

TEST(Scheduler, NobodyWaitsForTheTextOfOneBehindIt) {
  World world({.max_num_batched_tokens = 10, .max_num_seqs = 8}, 64, 4, by_priority);
  world.add(30, 31, true, 1);
  EXPECT_EQ(world.step(), (Step{{0, 10}}));
  world.add(30, 31, true, 0);
  // The one that runs is served first in the step that lets the other in.
  EXPECT_EQ(world.step(), (Step{{0, 10}}));
  world.scheduler.finish(*world.sequences[0]);
  EXPECT_EQ(world.step(), (Step{{1, 10}}));
}

TEST(Scheduler, FinishesSequencesWhereverTheyAre) {
  World world({.max_num_batched_tokens = 6, .max_num_seqs = 2}, 16, 4);
  Sequence& running = world.add(4);
  Sequence& prefilling = world.add(9);
  Sequence& waiting = world.add(4);
  world.step();
  world.scheduler.finish(prefilling);
  world.scheduler.finish(waiting);
  EXPECT_EQ(world.step(), (Step{{0, 1}}));
  world.scheduler.finish(running);
  EXPECT_TRUE(world.step().empty());
  EXPECT_EQ(world.blocks.num_free_blocks(), 16);
}

TEST(Scheduler, DoesNotScheduleBehindTheLastToken) {
  BlockManager blocks(8, 4);
  Scheduler scheduler({.max_num_batched_tokens = 16, .max_num_seqs = 4}, blocks);
  Sequence sequence(0, 0, {1, 2, 3}, 5);
  scheduler.add(sequence);
  scheduler.advance(scheduler.schedule());
  EXPECT_EQ(sequence.num_pending_tokens, 1);
  const auto ahead = scheduler.schedule();  // the first token is not known yet, but counts
  ASSERT_EQ(ahead.size(), 1u);
  EXPECT_EQ(ahead[0].num_new_tokens, 1);
  scheduler.advance(ahead);
  EXPECT_EQ(sequence.num_pending_tokens, 2);
  EXPECT_TRUE(scheduler.schedule().empty());  // 3 + 2 tokens are all it may have
}

TEST(Scheduler, CompletionsOfAnEarlierRequestGoBeforeLaterRequests) {
  World world({.max_num_batched_tokens = 4, .max_num_seqs = 8}, 64, 4);
  world.add(4);
  world.add(4);
  world.add(4);
  world.step();
  Sequence child(0, 1, {1, 2, 3}, 100);
  world.scheduler.add(child);
  EXPECT_EQ(*world.scheduler.waiting().begin(), &child);
  world.scheduler.finish(child);
}

TEST(Scheduler, SiblingsHoldTheirPromptOnlyWhileTheyRun) {
  BlockManager blocks(8, 4);
  Scheduler scheduler({.max_num_batched_tokens = 64, .max_num_seqs = 2}, blocks);
  Sequence first(0, 0, {1, 2, 3, 4, 5}, 9);
  Sequence second(first, 1), third(first, 2);
  for (Sequence* sequence : {&first, &second, &third}) scheduler.add(*sequence);
  EXPECT_EQ(second.num_tokens(), 5);
  EXPECT_TRUE(second.token_ids.empty());
  scheduler.advance(scheduler.schedule());
  EXPECT_EQ(second.token_ids, first.token_ids);
  EXPECT_TRUE(third.token_ids.empty());
  second.token_ids.push_back(6);
  --second.num_pending_tokens;
  scheduler.preempt(second);
  EXPECT_EQ(second.token_ids, (std::vector<int32_t>{6}));
  EXPECT_EQ(second.num_tokens(), 6);
  EXPECT_EQ(second.num_output_tokens(), 1);
  scheduler.advance(scheduler.schedule());
  EXPECT_EQ(second.token_ids, (std::vector<int32_t>{1, 2, 3, 4, 5, 6}));
  scheduler.finish(second);
  EXPECT_EQ(second.token_ids.capacity(), 1u);
  EXPECT_EQ(second.output()[0], 6);
  scheduler.finish(first);
  EXPECT_EQ(first.token_ids.size(), 5u);
  EXPECT_TRUE(std::ranges::equal(third.prompt(), first.token_ids));
  scheduler.finish(third);
}

TEST(Scheduler, QueuesSiblingsBetweenTheRequestsBesideThem) {
  constexpr int kNumSiblings = 100;
  World world({.max_num_batched_tokens = 4, .max_num_seqs = 8}, 64, 4);
  Sequence& first = world.add(4);
  Sequence& later = world.add(4);
  std::deque<Sequence> siblings;
  std::vector<Sequence*> queue;
  for (int i = 1; i <= kNumSiblings; ++i) {
    queue.push_back(&siblings.emplace_back(0, i, std::vector<int32_t>{1, 2, 3}, 100));
  }
  world.scheduler.add(queue);
  queue.insert(queue.begin(), &first);
  queue.push_back(&later);
  EXPECT_TRUE(std::ranges::equal(world.scheduler.waiting(), queue));
  for (Sequence& sibling : siblings) world.scheduler.finish(sibling);
  EXPECT_TRUE(std::ranges::equal(world.scheduler.waiting(), std::vector{&first, &later}));
}

TEST(Scheduler, LowerPrioritiesGoFirstAndEqualsByArrival) {
  World world({.max_num_batched_tokens = 100, .max_num_seqs = 1}, 64, 4, by_priority);
  for (const int priority : {0, 5, -1, 5, 0}) world.add(4, 5, false, priority);
  for (const int id : {2, 0, 4, 1, 3}) EXPECT_EQ(world.step(), (Step{{id, 4}}));
}

TEST(Scheduler, PreemptsTheHighestPriorityThenTheLatest) {
  World world({.max_num_batched_tokens = 100, .max_num_seqs = 8}, 4, 4, by_priority);
  for (const int priority : {1, 0, 1, 0}) world.add(4, 9, false, priority);
  EXPECT_EQ(world.step(), (Step{{1, 4}, {3, 4}, {0, 4}, {2, 4}}));
  EXPECT_EQ(world.step(), (Step{{1, 1}, {3, 1}}));  // both take a second block
  const auto preempted = world.scheduler.preempted();
  EXPECT_TRUE(std::ranges::equal(preempted,
                                 std::vector{world.sequences[2].get(), world.sequences[0].get()}));
  EXPECT_EQ(*world.scheduler.waiting().begin(), world.sequences[0].get());
}

}  // namespace
}  // namespace nanovllm
