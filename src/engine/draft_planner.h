// How many tokens of each draft a step verifies.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/drafter.h"

namespace nanovllm {

// What so many rows take, learned from steps. A number that was slow once is tried again: what was
// measured counts for less with every step since.
class RowTimes {
 public:
  void learn(int num_rows, double seconds);
  void forget() { ++num_steps_; }  // to be called once a step
  // Between two that are known on a line, beyond them as the next one; 0 = nothing is known yet.
  double seconds(int num_rows) const;
  // Of those that are known; 0 = none.
  int fewest() const { return measured_.empty() ? 0 : measured_.front().num_rows; }
  int most() const { return measured_.empty() ? 0 : measured_.back().num_rows; }

 private:
  struct Measured {
    int num_rows;
    double seconds;
    int64_t step;  // in which it was measured last
  };
  double now(const Measured& measured) const;

  std::vector<Measured> measured_;  // by num_rows
  int64_t num_steps_ = 0;
};

// The lengths with the most expected tokens for each expected second of the step. What a token of a
// draft is worth is learned from those that came, by how much evidence it had; what a row more of a
// step costs, from the steps. Choices change speed and no token. Not thread-safe.
class DraftPlanner {
 public:
  // Tokens that are expected to come less often than least_probability are not verified. hope: how
  // often the tokens of a model, which is drafter 0, come before anything is known of them; 0 =
  // there is no model.
  explicit DraftPlanner(double least_probability = 0, double hope = 0);

  // How many tokens, `most` at most, a model is to guess for each of num_decodes sequences in the
  // step that comes: it takes a pass for each. The longer that is 0, the more is hoped for.
  int num_guesses(int num_decodes, int most);
  // Cuts the drafts of a step in which num_decodes sequences decode, which has room for most_rows
  // rows more.
  void cut(std::span<DraftTokens> drafts, int num_decodes, int most_rows);
  // A draft, whole, be it verified or not, and the tokens that came in its place.
  void learn(const DraftTokens& draft, std::span<const int32_t> tokens);
  // A step in which sequences decode and nothing else is computed, without what guesses took.
  void learn_step(int num_rows, double seconds);
  // A pass of a model that guesses.
  void learn_pass(int num_rows, double seconds) { passes_.learn(num_rows, seconds); }

  // The probability that a token with so much evidence comes where those before it came.
  double probability(int evidence, int drafter = 0) const;
  // Of its tokens that come, were it verified to its end.
  double expected_length(const DraftTokens& draft) const;
  // Of a step with so many rows; 0 = nothing is known yet.
  double seconds(int num_rows) const { return steps_.seconds(num_rows); }

 private:
  // Evidence in classes: 1, 2, 3, 4, up to 6, 10, 18, and more.
  static constexpr int kNumClasses = 8;
  static int class_of(int evidence);

  struct Guess {
    double hits, tries;
  };
  struct Slot {
    double probability;  // that its token comes, and all before it
    size_t draft;
  };
  int most_more_rows(int num_decodes) const;

  double least_probability_, hope_;
  using Guesses = std::array<Guess, kNumClasses>;
  static constexpr Guesses kAtFirst = {
      {{.6, 2}, {.9, 2}, {1.1, 2}, {1.2, 2}, {1.3, 2}, {1.5, 2}, {1.7, 2}, {1.8, 2}}};
  std::vector<Guesses> guesses_;  // by drafter, as far as they have proposed anything
  RowTimes steps_, passes_;
  std::vector<Slot> slots_;  // reused
};

}  // namespace nanovllm
