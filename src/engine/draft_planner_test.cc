#include "engine/draft_planner.h"

#include <gtest/gtest.h>

#include <vector>

namespace nanovllm {
namespace {

using Ids = std::vector<int32_t>;

// Steps whose rows cost nothing until there are `free` of them, then as much as the step each.
void learn_steps(DraftPlanner& planner, int free, int last = 64) {
  for (int i = 0; i < 40; ++i) {
    for (int rows = 1; rows <= last; ++rows) planner.learn_step(rows, 1 + std::max(0, rows - free));
  }
}

// Each token comes, where those before it came, with this probability.
void learn_tokens(DraftPlanner& planner, int evidence, double probability) {
  double due = 0;
  for (int i = 0; i < 2000; ++i) {
    due += probability;
    const bool comes = due >= 1;
    if (comes) due -= 1;
    planner.learn({{5}, evidence}, Ids{comes ? 5 : 6});
  }
}

std::vector<size_t> lengths(DraftPlanner& planner, std::vector<DraftTokens> drafts,
                            int most_rows = 100) {
  const auto count = static_cast<int>(drafts.size());
  planner.cut(drafts, count, most_rows);
  std::vector<size_t> lengths;
  for (const DraftTokens& draft : drafts) lengths.push_back(draft.ids.size());
  return lengths;
}

DraftTokens draft_of(int length, int evidence) { return {Ids(length, 5), evidence}; }

TEST(DraftPlanner, LearnsHowOftenTokensComeByTheirEvidence) {
  DraftPlanner planner;
  learn_tokens(planner, 1, 0.1);
  learn_tokens(planner, 30, 0.9);
  EXPECT_NEAR(planner.probability(1), 0.1, 0.05);
  EXPECT_NEAR(planner.probability(30), 0.9, 0.05);
  EXPECT_NEAR(planner.probability(25), 0.9, 0.05);
  // A token has one more than the one before it, and those behind a wrong one tell nothing.
  DraftPlanner other;
  const double of_four = other.probability(4);
  for (int i = 0; i < 2000; ++i) other.learn({{1, 2, 3}, 2}, Ids{1, 7, 3});
  EXPECT_NEAR(other.probability(2), 1, 0.01);
  EXPECT_NEAR(other.probability(3), 0, 0.01);
  EXPECT_EQ(other.probability(4), of_four);
}

TEST(DraftPlanner, LearnsOfEachDrafterByItself) {
  DraftPlanner planner;
  const double at_first = planner.probability(2, 1);
  for (int i = 0; i < 2000; ++i) planner.learn({{1, 2}, 2, 3}, Ids{1, 2});
  EXPECT_NEAR(planner.probability(2, 3), 1, 0.01);
  EXPECT_EQ(planner.probability(2, 1), at_first);
  EXPECT_EQ(planner.probability(2, 9), at_first);
  EXPECT_NEAR(planner.expected_length({{1, 2}, 2, 3}), 2, 0.01);
  EXPECT_NEAR(planner.expected_length({{1, 2}, 2, 1}),
              at_first + at_first * planner.probability(3, 1), 1e-9);
}

TEST(DraftPlanner, LearnsWhatStepsTake) {
  DraftPlanner planner;
  EXPECT_EQ(planner.seconds(1), 0);
  planner.learn_step(1, 10);
  EXPECT_EQ(planner.seconds(8), 10);  // not known to be more
  planner.learn_step(9, 50);
  EXPECT_NEAR(planner.seconds(5), 30, 0.1);
  for (int i = 0; i < 50; ++i) planner.learn_step(9, 20);
  EXPECT_NEAR(planner.seconds(9), 20, 0.5);
  // What nobody has seen for long is worth a try.
  for (int i = 0; i < 5000; ++i) planner.learn_step(1, 10);
  EXPECT_LT(planner.seconds(9), 10);
}

TEST(DraftPlanner, TakesWhatIsWorthItsRows) {
  DraftPlanner planner;
  learn_steps(planner, 8);
  learn_tokens(planner, 30, 0.9);
  learn_tokens(planner, 1, 0.05);
  EXPECT_EQ(lengths(planner, {draft_of(20, 30)}), std::vector<size_t>{7});
  DraftPlanner dear;
  learn_steps(dear, 1);
  learn_tokens(dear, 30, 0.9);
  EXPECT_EQ(lengths(dear, {draft_of(20, 30)}), std::vector<size_t>{0});
}

TEST(DraftPlanner, SlotsGoToTheMostProbableOfAllSequences) {
  DraftPlanner planner;
  learn_steps(planner, 8);
  learn_tokens(planner, 30, 0.9);
  learn_tokens(planner, 1, 0.3);
  learn_tokens(planner, 2, 0.3);
  // Three rows are there already, five are free: of the first draft the second token has 0.09.
  EXPECT_EQ(lengths(planner, {draft_of(8, 1), draft_of(8, 30), draft_of(0, 0)}),
            (std::vector<size_t>{0, 5, 0}));
  EXPECT_EQ(lengths(planner, {draft_of(8, 1), draft_of(2, 30), draft_of(0, 0)}),
            (std::vector<size_t>{3, 2, 0}));
  EXPECT_EQ(lengths(planner, {draft_of(8, 1), draft_of(8, 30)}, 2), (std::vector<size_t>{0, 2}));
  EXPECT_EQ(lengths(planner, {draft_of(8, 30)}, 0), std::vector<size_t>{0});
}

TEST(DraftPlanner, TokensThatHardlyComeAreNotTaken) {
  DraftPlanner planner(0.2);
  learn_steps(planner, 60);
  learn_tokens(planner, 1, 0.3);
  learn_tokens(planner, 2, 0.3);
  EXPECT_EQ(lengths(planner, {draft_of(8, 1)}), std::vector<size_t>{1});
}

TEST(DraftPlanner, AModelGuessesWhatIsWorthItsPasses) {
  DraftPlanner planner(0, 0.8);
  EXPECT_EQ(planner.num_guesses(1, 8), 0);  // what a step takes without comes first
  learn_steps(planner, 8);
  EXPECT_EQ(planner.num_guesses(1, 8), 7);
  EXPECT_EQ(planner.num_guesses(1, 3), 3);
  EXPECT_EQ(planner.num_guesses(3, 8), 1);  // two for each would be 9 rows
  planner.learn_pass(1, 0.4);
  EXPECT_EQ(planner.num_guesses(1, 8), 2);
  planner.learn_pass(1, 50);
  EXPECT_EQ(planner.num_guesses(1, 8), 0);
}

TEST(DraftPlanner, AModelThatHasBeenWrongIsTriedAgain) {
  DraftPlanner planner(0, 0.8);
  learn_steps(planner, 8);
  for (int i = 0; i < 10; ++i) planner.learn_pass(1, 0.3);
  learn_tokens(planner, 1, 0.01);
  EXPECT_EQ(planner.num_guesses(1, 8), 0);
  int num_steps = 0;
  while (planner.num_guesses(1, 8) == 0 && num_steps < 10'000) ++num_steps;
  EXPECT_GT(num_steps, 500);
  EXPECT_LT(num_steps, 5000);
}

TEST(DraftPlanner, AStepWithoutDraftsIsMeasuredFirstAndThenTwiceItsRows) {
  DraftPlanner planner;
  learn_tokens(planner, 30, 0.9);
  EXPECT_EQ(lengths(planner, {draft_of(20, 30)}), std::vector<size_t>{0});
  planner.learn_step(1, 1);
  EXPECT_EQ(lengths(planner, {draft_of(20, 30)}), std::vector<size_t>{1});
  planner.learn_step(2, 1);
  EXPECT_EQ(lengths(planner, {draft_of(20, 30)}), std::vector<size_t>{3});
  DraftPlanner of_prompts;
  of_prompts.learn_step(500, 1);
  EXPECT_EQ(lengths(of_prompts, {draft_of(20, 30)}), std::vector<size_t>{0});
}

}  // namespace
}  // namespace nanovllm
